//! The filter of the command line: `key=value` pairs, which the daemon gets as matches of rules.
//!
//! # Approach
//!
//! The keys are those of a rule's `match`. In addition, `host`, `mac` and `port` mean the source or
//! the destination. Each such key doubles the number of matches, of which a frame must have one.

use anyhow::{Result, bail};

use crate::pairs::Pairs;

/// Keys that mean the source or the destination.
const EITHER: [(&str, [&str; 2]); 3] =
    [("host", ["src", "dst"]), ("mac", ["src_mac", "dst_mac"]), ("port", ["src_port", "dst_port"])];

/// Limit on alternatives: the three keys of [`EITHER`], each once.
const ALTERNATIVES_MAX: usize = 8;

/// Returns the matches of a filter as TOML texts. Returns no match for an empty filter.
///
/// # Errors
/// Returns an error if the text is not a list of `key=value` pairs.
pub(super) fn matches(text: &str) -> Result<Vec<String>> {
    let mut alternatives = vec![Vec::<String>::new()];
    for pair in text.split([' ', ',', '\t']).filter(|pair| !pair.is_empty()) {
        let Some((key, value)) = pair.split_once('=') else {
            bail!(
                "filter {pair:?}: not of the form key=value; write for example \
                 \"proto=tcp port=80\" or \"host=10.0.0.1\""
            );
        };
        let either = EITHER.iter().find(|(name, _)| *name == key).map(|(_, keys)| keys);
        let keys = either.map_or(vec![key], |keys| keys.to_vec());
        let with = |pairs: &Vec<String>| {
            let pairs = pairs.clone();
            keys.iter()
                .map(move |key| [&pairs[..], &[format!("{key}={value}")]].concat())
                .collect::<Vec<_>>()
        };
        alternatives = alternatives.iter().flat_map(with).collect();
        if alternatives.len() > ALTERNATIVES_MAX {
            bail!("filter: `host`, `mac` and `port` occur too often; write each key once");
        }
    }
    if alternatives == [Vec::<String>::new()] {
        return Ok(Vec::new());
    }
    alternatives.iter().map(|pairs| Ok(Pairs::parse(pairs)?.table.to_string())).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_of_either_direction_become_alternatives() {
        assert_eq!(matches("").unwrap(), Vec::<String>::new());
        assert_eq!(
            matches("proto=tcp, port=80").unwrap(),
            ["proto = \"tcp\"\nsrc_port = 80\n", "dst_port = 80\nproto = \"tcp\"\n"]
        );
        assert_eq!(matches("host=10.0.0.1 port=1-9").unwrap().len(), 4);
        let error = matches("tcp port 80").unwrap_err().to_string();
        assert!(error.contains("key=value"), "{error}");
        assert!(matches("src=1.2.3.4 src=1.2.3.5").is_err(), "a key twice");
    }
}
