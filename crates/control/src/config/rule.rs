//! `[[rule]]`: actions on frames that match.

use core::fmt;
use core::str::FromStr;

use penstock_toml::text_value;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::matching::{Dscp, EtherType, IpPrefix, IpProto, MacMatch, PortMatch};
use super::vlan::Vlan;

/// A rule. It applies to frames *from* one port, from a tenant's ports, or from all ports.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Rule {
    /// Unique; 1 to 32 characters of `a-z A-Z 0-9 . _ -`.
    pub name: String,
    /// Priority, 0 to 65535. The highest wins; of equal ones the first in the file wins. Default
    /// 100.
    #[serde(default = "default_priority")]
    pub priority: u16,
    /// Only frames from this port. Excludes `tenant`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub port: Option<String>,
    /// Only frames from this tenant's ports.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tenant: Option<String>,
    /// Fields that a frame must have. Default: none, all frames match.
    #[serde(default, rename = "match", skip_serializing_if = "Match::is_any")]
    pub matching: Match,
    /// Actions in order: rewrites first, then `drop`, `normal` or one or more `output:PORT`.
    #[schemars(length(min = 1, max = 16))]
    pub actions: Vec<Action>,
}

const fn default_priority() -> u16 {
    100
}

impl Rule {
    /// A rule for all frames of all ports, with priority 100.
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

    /// `port vm1`, `tenant red`, `all`.
    #[must_use]
    pub fn scope_text(&self) -> String {
        match (&self.port, &self.tenant) {
            (Some(port), _) => format!("port {port}"),
            (None, Some(tenant)) => format!("tenant {tenant}"),
            (None, None) => "all".to_owned(),
        }
    }

    /// `set-vlan:5, output:vm2`.
    #[must_use]
    pub fn actions_text(&self) -> String {
        let texts: Vec<String> = self.actions.iter().map(Action::to_string).collect();
        texts.join(", ")
    }
}

/// Fields that a frame must have. All must match; a missing key matches any value.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default, expecting = "a table such as { dst_port = 80 }")]
pub struct Match {
    /// The frame's VLAN.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub vlan: Option<Vlan>,
    /// Source MAC address, with or without a mask.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub src_mac: Option<MacMatch>,
    /// Destination MAC address, with or without a mask.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub dst_mac: Option<MacMatch>,
    /// `ipv4`, `ipv6`, `arp` or a number. Implied by `src` and `dst`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ethertype: Option<EtherType>,
    /// Source IP prefix.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub src: Option<IpPrefix>,
    /// Destination IP prefix.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub dst: Option<IpPrefix>,
    /// `tcp`, `udp`, `sctp`, `icmp`, `icmpv6`, `gre`, `esp` or a number.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub proto: Option<IpProto>,
    /// Source port; needs `proto` tcp, udp or sctp.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub src_port: Option<PortMatch>,
    /// Destination port; needs `proto` tcp, udp or sctp.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub dst_port: Option<PortMatch>,
    /// Differentiated services code point, 0 to 63.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub dscp: Option<Dscp>,
}

impl Match {
    /// The number of pairs of value and mask that the port ranges become.
    #[must_use]
    pub fn expansions(&self) -> usize {
        let masks = |ports: Option<PortMatch>| ports.map_or(1, |p| p.to_masks().len());
        masks(self.src_port) * masks(self.dst_port)
    }

    /// Whether every frame matches.
    #[must_use]
    pub fn is_any(&self) -> bool {
        *self == Self::default()
    }
}

impl fmt::Display for Match {
    /// `proto=tcp dst_port=80`, or `any`.
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

/// One action of a rule.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Action {
    /// `drop`: drops the frame, with reason `rule`.
    Drop,
    /// `normal`: forwards the frame by MAC address, as without the rule.
    Normal,
    /// `output:PORT`: sends the frame to this port.
    Output(String),
    /// `set-vlan:100`: moves the frame to this VLAN.
    SetVlan(Vlan),
    /// `set-dscp:46`: sets the code point of an IP frame. Other frames stay unchanged.
    SetDscp(Dscp),
}

impl fmt::Display for Action {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Drop => f.write_str("drop"),
            Self::Normal => f.write_str("normal"),
            Self::Output(port) => write!(f, "output:{port}"),
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
            Some(("set-vlan", vlan)) => vlan.parse().map(Self::SetVlan),
            Some(("set-dscp", dscp)) => dscp.parse().map(Self::SetDscp),
            _ => Err(format!(
                "action {text:?} is unknown; write drop, normal, output:PORT, set-vlan:VLAN or \
                 set-dscp:NUMBER"
            )),
        }
    }
}

text_value!(Action, "Action", "drop, normal, output:PORT, set-vlan:VLAN or set-dscp:NUMBER", {
    "type": "string",
    "pattern": "^(drop|normal|output:.+|set-vlan:[0-9]+|set-dscp:[0-9]+)$"
});
