//! `[[rule]]`: actions on frames that match given fields.

use core::fmt;
use core::str::FromStr;

use penstock_toml::text_value;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::matching::{Dscp, EtherType, IpPrefix, IpProto, MacMatch, PortMatch};
use super::vlan::Vlan;

/// A rule for frames that one port sends, that a tenant's ports send, or that any port sends.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Rule {
    /// Unique name of the rule, 1 to 64 characters of `a-z A-Z 0-9 . _ -`.
    pub name: String,
    /// Priority of the rule, 0 to 65535. Of all rules that match a frame, the rule with the highest
    /// priority applies; among equal priorities, the first rule in the file applies. Default 100.
    #[serde(default = "default_priority")]
    pub priority: u16,
    /// Name of a port: the rule applies only to frames from this port. Excludes `tenant`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub port: Option<String>,
    /// Name of a tenant: the rule applies only to frames from this tenant's ports.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tenant: Option<String>,
    /// Fields that a frame must match; default: none, all frames match.
    #[serde(default, rename = "match", skip_serializing_if = "Match::is_any")]
    pub matching: Match,
    /// Actions of the rule in order: rewrites and `mirror:PORT` first, then `drop`, `normal` or one
    /// or more `output:PORT`.
    #[schemars(length(min = 1, max = 16))]
    pub actions: Vec<Action>,
}

const fn default_priority() -> u16 {
    100
}

impl Rule {
    /// Returns a rule for all frames of all ports, with priority 100.
    #[must_use]
    pub fn new(name: impl Into<String>, actions: Vec<Action>) -> Self {
        Self {
            name: name.into(),
            priority: default_priority(),
            port: None,
            tenant: None,
            matching: Match::default(),
            actions,
        }
    }

    /// Returns the scope of the rule as text, such as `port vm1`, `tenant red` or `all`.
    #[must_use]
    pub fn scope_text(&self) -> String {
        match (&self.port, &self.tenant) {
            (Some(port), _) => format!("port {port}"),
            (None, Some(tenant)) => format!("tenant {tenant}"),
            (None, None) => "all".to_owned(),
        }
    }

    /// Returns the actions of the rule as text, such as `set-vlan:5, output:vm2`.
    #[must_use]
    pub fn actions_text(&self) -> String {
        let texts: Vec<String> = self.actions.iter().map(Action::to_string).collect();
        texts.join(", ")
    }
}

/// Fields that a frame must have to match a rule. A frame must match all given keys; a missing key
/// matches any value.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(
    deny_unknown_fields,
    default,
    expecting = "a table of header fields such as { dst_port = 80 }"
)]
pub struct Match {
    /// VLAN of the frame, 1 to 4094.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub vlan: Option<Vlan>,
    /// Source MAC address, with or without a mask.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub src_mac: Option<MacMatch>,
    /// Destination MAC address, with or without a mask.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub dst_mac: Option<MacMatch>,
    /// Ethernet type of the frame, which is `ipv4`, `ipv6`, `arp` or a number. The keys `src` and
    /// `dst` imply the Ethernet type.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ethertype: Option<EtherType>,
    /// Source IP prefix.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub src: Option<IpPrefix>,
    /// Destination IP prefix.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub dst: Option<IpPrefix>,
    /// IP protocol of the frame, which is `tcp`, `udp`, `sctp`, `icmp`, `icmpv6`, `gre`, `esp` or a
    /// number.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub proto: Option<IpProto>,
    /// Source port of the frame: a port, a range, or a value with a mask. A port match requires
    /// that `proto` is tcp, udp or sctp.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub src_port: Option<PortMatch>,
    /// Destination port of the frame: a port, a range, or a value with a mask. A port match
    /// requires that `proto` is tcp, udp or sctp.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub dst_port: Option<PortMatch>,
    /// Differentiated services code point (DSCP) of the frame, 0 to 63.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub dscp: Option<Dscp>,
}

impl Match {
    /// Number of pairs of value and mask into which the port ranges expand.
    #[must_use]
    pub fn expansions(&self) -> usize {
        let masks = |ports: Option<PortMatch>| ports.map_or(1, |p| p.to_masks().len());
        masks(self.src_port) * masks(self.dst_port)
    }

    /// Returns true if the match sets no field and so matches every frame.
    #[must_use]
    pub fn is_any(&self) -> bool {
        *self == Self::default()
    }
}

impl fmt::Display for Match {
    /// Writes the fields as text, such as `proto=tcp dst_port=80`, or writes `any`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let keys: [(&str, Option<&dyn fmt::Display>); 10] = [
            ("vlan", self.vlan.as_ref().map(|v| v as _)),
            ("src_mac", self.src_mac.as_ref().map(|v| v as _)),
            ("dst_mac", self.dst_mac.as_ref().map(|v| v as _)),
            ("ethertype", self.ethertype.as_ref().map(|v| v as _)),
            ("src", self.src.as_ref().map(|v| v as _)),
            ("dst", self.dst.as_ref().map(|v| v as _)),
            ("proto", self.proto.as_ref().map(|v| v as _)),
            ("src_port", self.src_port.as_ref().map(|v| v as _)),
            ("dst_port", self.dst_port.as_ref().map(|v| v as _)),
            ("dscp", self.dscp.as_ref().map(|v| v as _)),
        ];
        let mut first = true;
        for (key, value) in keys.iter().filter_map(|(key, value)| value.map(|v| (key, v))) {
            write!(f, "{}{key}={value}", if first { "" } else { " " })?;
            first = false;
        }
        if first { f.write_str("any") } else { Ok(()) }
    }
}

/// An action of a rule; the configuration file contains the action as text.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Action {
    /// The text `drop`: drops the frame and counts the drop with the reason `rule`.
    Drop,
    /// The text `normal`: forwards the frame by MAC address, as if no rule matched.
    Normal,
    /// The text `output:PORT`: sends the frame to the port `PORT`.
    Output(String),
    /// The text `mirror:PORT`: sends a copy of the frame to the port `PORT`.
    Mirror(String),
    /// The text `set-vlan:100`: moves the frame to VLAN 100.
    SetVlan(Vlan),
    /// The text `set-dscp:46`: sets the code point of an IP frame to 46. The action `set-dscp` does
    /// not change frames that are not IP frames.
    SetDscp(Dscp),
}

impl fmt::Display for Action {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Drop => f.write_str("drop"),
            Self::Normal => f.write_str("normal"),
            Self::Output(port) => write!(f, "output:{port}"),
            Self::Mirror(port) => write!(f, "mirror:{port}"),
            Self::SetVlan(vlan) => write!(f, "set-vlan:{vlan}"),
            Self::SetDscp(dscp) => write!(f, "set-dscp:{dscp}"),
        }
    }
}

impl FromStr for Action {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text.split_once(':') {
            None if text == "drop" => Ok(Self::Drop),
            None if text == "normal" => Ok(Self::Normal),
            Some(("output", port)) if !port.is_empty() => Ok(Self::Output(port.to_owned())),
            Some(("mirror", port)) if !port.is_empty() => Ok(Self::Mirror(port.to_owned())),
            Some(("set-vlan", vlan)) => vlan.parse().map(Self::SetVlan),
            Some(("set-dscp", dscp)) => dscp.parse().map(Self::SetDscp),
            _ => Err(format!(
                "action {text:?} is unknown; write drop, normal, output:PORT, mirror:PORT, \
                 set-vlan:VLAN or set-dscp:NUMBER"
            )),
        }
    }
}

text_value!(Action, "Action", "an action such as drop, normal, output:PORT or mirror:PORT", {
    "type": "string",
    "pattern": "^(drop|normal|output:.+|mirror:.+|set-vlan:[0-9]+|set-dscp:[0-9]+)$"
});
