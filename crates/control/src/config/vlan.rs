//! VLAN identifiers and lists of VLANs in the form of configuration files, such as `100` or
//! `"100-110"`.

use core::fmt;
use core::str::FromStr;

use penstock_toml::text_value;
use penstock_units::Vid;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize, Serializer};

/// A VLAN, 1 to 4094, written as a number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Vlan(Vid);

impl Vlan {
    /// Returns the VLAN identifier as the data path's type [`Vid`].
    #[must_use]
    pub const fn vid(self) -> Vid {
        self.0
    }

    #[must_use]
    pub const fn get(self) -> u16 {
        self.0.get()
    }
}

impl fmt::Display for Vlan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl FromStr for Vlan {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || format!("VLAN {text} is out of range; a VLAN is a number from 1 to 4094");
        let number: u32 = text.trim().parse().map_err(|_| wrong())?;
        match Vid::new(number) {
            Ok(vid) if number > 0 => Ok(Self(vid)),
            _ => Err(wrong()),
        }
    }
}

impl<'de> Deserialize<'de> for Vlan {
    fn deserialize<D: serde::Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
        penstock_toml::text::read(d, "a VLAN from 1 to 4094")
    }
}

impl Serialize for Vlan {
    fn serialize<S: Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
        s.serialize_u16(self.get())
    }
}

impl JsonSchema for Vlan {
    fn schema_name() -> std::borrow::Cow<'static, str> {
        "Vlan".into()
    }
    fn json_schema(_: &mut schemars::SchemaGenerator) -> schemars::Schema {
        schemars::json_schema!({
            "type": ["integer", "string"],
            "minimum": 1,
            "maximum": 4094,
            "pattern": format!("^{VID}$")
        })
    }
}

/// Regular expression for the number of a VLAN, 1 to 4094.
const VID: &str = r"\s*(409[0-4]|40[0-8][0-9]|[1-3][0-9]{3}|[1-9][0-9]{0,2})\s*";

/// A VLAN, or a range of VLANs with both ends, written as `100` or `"100-110"`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct VlanRange {
    first: Vlan,
    last: Vlan,
}

impl fmt::Display for VlanRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.first == self.last {
            self.first.fmt(f)
        } else {
            write!(f, "{}-{}", self.first, self.last)
        }
    }
}

impl FromStr for VlanRange {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (first, last) = text.split_once('-').unwrap_or((text, text));
        if first.trim().is_empty() || last.trim().is_empty() {
            return Err(format!(
                "{text:?} is not a VLAN; write a number from 1 to 4094, or a range such as \
                 \"100-110\""
            ));
        }
        let (first, last): (Vlan, Vlan) = (first.parse()?, last.parse()?);
        if first > last {
            return Err(format!("VLAN range {text} ends before it begins; write {last}-{first}"));
        }
        Ok(Self { first, last })
    }
}

impl<'de> Deserialize<'de> for VlanRange {
    fn deserialize<D: serde::Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
        penstock_toml::text::read(d, "a VLAN such as 100 or a range such as \"100-110\"")
    }
}

impl Serialize for VlanRange {
    fn serialize<S: Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
        if self.first == self.last { self.first.serialize(s) } else { s.collect_str(self) }
    }
}

impl JsonSchema for VlanRange {
    fn schema_name() -> std::borrow::Cow<'static, str> {
        "VlanRange".into()
    }
    fn json_schema(_: &mut schemars::SchemaGenerator) -> schemars::Schema {
        schemars::json_schema!({
            "oneOf": [
                {"type": "integer", "minimum": 1, "maximum": 4094},
                {"type": "string", "pattern": format!("^{VID}(-{VID})?$")}
            ]
        })
    }
}

/// VLANs and ranges, written as `[100, "200-210"]` and shown as `100,200-210`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(transparent)]
pub struct VlanList(pub Vec<VlanRange>);

impl VlanList {
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    #[must_use]
    pub fn contains(&self, vlan: Vlan) -> bool {
        self.0.iter().any(|range| range.first <= vlan && vlan <= range.last)
    }

    /// Returns each VLAN of the list once, in ascending order.
    #[must_use]
    pub fn to_vec(&self) -> Vec<Vlan> {
        let mut all: Vec<Vlan> = self
            .0
            .iter()
            .flat_map(|range| range.first.get()..=range.last.get())
            .filter_map(|vid| Vid::new(u32::from(vid)).ok().map(Vlan))
            .collect();
        all.sort_unstable();
        all.dedup();
        all
    }
}

impl fmt::Display for VlanList {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (at, range) in self.0.iter().enumerate() {
            if at > 0 {
                f.write_str(",")?;
            }
            range.fmt(f)?;
        }
        Ok(())
    }
}

impl FromStr for VlanList {
    type Err = String;

    /// Reads a list of VLANs in the form that [`fmt::Display`] writes, such as `100,200-210`.
    fn from_str(text: &str) -> Result<Self, String> {
        text.split(',').map(|range| range.trim().parse()).collect::<Result<_, _>>().map(Self)
    }
}

/// Mode of a file, written as in `"0660"`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct FileMode(pub u32);

impl fmt::Display for FileMode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:04o}", self.0)
    }
}

impl FromStr for FileMode {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match u32::from_str_radix(text, 8) {
            Ok(mode) if mode <= 0o777 && !text.starts_with('+') => Ok(Self(mode)),
            _ => Err(format!(
                "{text:?} is not a file mode; write octal digits in quotes, as in \"0660\""
            )),
        }
    }
}

text_value!(FileMode, "FileMode", "octal digits in quotes, as in \"0660\"", {
    "type": "string", "pattern": "^0?[0-7]{1,3}$"
});

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_read_and_show_themselves() {
        let list: VlanList = "5,100-102,101".parse().unwrap();
        assert_eq!(list.to_vec().iter().map(|v| v.get()).collect::<Vec<_>>(), [5, 100, 101, 102]);
        assert_eq!(list.to_string(), "5,100-102,101");
        assert!(list.contains("102".parse().unwrap()) && !list.contains("6".parse().unwrap()));
        for bad in ["0", "4095", "10-5", "a", "", "1-2-3", "-1"] {
            assert!(bad.parse::<VlanList>().is_err(), "{bad}");
        }
        for bad in ["-1", "1-", ""] {
            let error = bad.parse::<VlanRange>().unwrap_err();
            assert!(error.starts_with(&format!("{bad:?} is not a VLAN; write")), "{error}");
        }
    }
}
