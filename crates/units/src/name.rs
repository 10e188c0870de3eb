//! Names of hosts, tenants, ports, rules and VMs. All configuration files have one rule for names.

use core::fmt;

use crate::NAME_BYTES_MAX;

/// What a name must be, as the remedy in errors.
pub const NAME_REMEDY: &str = "write 1 to 64 characters of a-z A-Z 0-9 . _ -";

/// Reason why a text cannot be a name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NameMistake {
    /// The name has no character.
    Empty,
    /// The name contains this character, which names never contain.
    Character(char),
    /// Number of bytes of the name, which is above [`NAME_BYTES_MAX`].
    TooLong(usize),
}

impl fmt::Display for NameMistake {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Empty => f.write_str("the name is empty"),
            Self::Character(c) => write!(f, "the name contains {c:?}"),
            Self::TooLong(bytes) => {
                write!(f, "the name has {bytes} characters, the limit is {NAME_BYTES_MAX}")
            }
        }
    }
}

impl core::error::Error for NameMistake {}

/// Checks that `name` has 1 to 64 characters of `a-z A-Z 0-9 . _ -`.
///
/// # Errors
/// Returns the first mistake of the name.
pub fn check_name(name: &str) -> Result<(), NameMistake> {
    let allowed = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-');
    match name.chars().find(|c| !allowed(*c)) {
        _ if name.is_empty() => Err(NameMistake::Empty),
        Some(c) => Err(NameMistake::Character(c)),
        None if name.len() > NAME_BYTES_MAX => Err(NameMistake::TooLong(name.len())),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_short_and_plain() {
        for good in ["a", "vm-1.x_Y", &"x".repeat(NAME_BYTES_MAX)] {
            assert_eq!(check_name(good), Ok(()), "{good}");
        }
        assert_eq!(check_name(""), Err(NameMistake::Empty));
        assert_eq!(check_name("a b"), Err(NameMistake::Character(' ')));
        assert_eq!(check_name("ä"), Err(NameMistake::Character('ä')));
        let long = "x".repeat(NAME_BYTES_MAX + 1);
        let mistake = check_name(&long).unwrap_err();
        assert_eq!(mistake.to_string(), "the name has 65 characters, the limit is 64");
        assert!(NAME_REMEDY.contains(&format!("1 to {NAME_BYTES_MAX} characters")));
    }
}
