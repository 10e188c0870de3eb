//! Rules and filters for captured frames.

use std::sync::Arc;

use penstock_dataplane::capture::HeaderReader;
use penstock_dataplane::headers::{FlowKey, FlowMask};
use penstock_dataplane::offload::Offload;
use penstock_dataplane::snapshot::{MatchError, RuleTables};
use penstock_units::PortId;

use super::compile::Compiler;
use super::rules::{Scope, matches, place_of};
use crate::config::{Match, Port};

/// Finds the rule of a captured frame. The rules are those at the time of the creation.
pub(crate) struct RuleFinder {
    tables: RuleTables,
    /// Names of the rules in the port's, the tenant's and the host's table, by number.
    names: [Vec<String>; 3],
    /// VLAN of untagged frames.
    untagged: u16,
    port: PortId,
    reader: HeaderReader,
}

impl RuleFinder {
    /// Returns the name of the rule that a frame from the port matches. `bytes` has the frame's
    /// first bytes, and `len` is its length. `tci` has the VLAN of a frame whose tag was taken off.
    pub(crate) fn rule(&mut self, bytes: &[u8], len: u32, tci: u16) -> Option<&str> {
        if self.tables.is_empty() || len == 0 {
            return None;
        }
        let key = self.reader.key(bytes, len, Offload::NONE, self.port)?;
        let vid = [key.vid(), tci & 0xfff].into_iter().find(|vid| *vid != 0);
        let vid = vid.unwrap_or(self.untagged);
        let (table, rule) = self.tables.find(&key, vid)?;
        let names = self.names.get(table as usize)?;
        names.get(place_of(rule.id)).map(String::as_str)
    }
}

impl Compiler {
    /// Returns the finder of the present rules for frames from `port`.
    pub(crate) fn rule_finder(&self, port: &Port, id: PortId) -> RuleFinder {
        let tenant = port.tenant.clone().map(Scope::Tenant);
        let scopes = [Some(Scope::Port(port.name.clone())), tenant, Some(Scope::All)];
        let built = scopes.map(|scope| self.tables.get(&scope?));
        let table = |at: usize| built[at].map(|built| Arc::clone(&built.table));
        RuleFinder {
            tables: RuleTables { own: table(0), tenant: table(1), global: table(2) },
            names: built.map(|built| built.map(|built| built.names.clone()).unwrap_or_default()),
            untagged: untagged_vlan(port),
            port: id,
            reader: HeaderReader::default(),
        }
    }
}

/// Returns the VLAN of untagged frames from a port; 0 for the untagged network.
pub(crate) fn untagged_vlan(port: &Port) -> u16 {
    port.vlan.or(port.native).map_or(0, |vlan| vlan.get())
}

/// Returns the keys and masks of a match.
///
/// # Errors
/// Returns an error if no frame can match.
pub(crate) fn compiled(matching: &Match) -> Result<Vec<(FlowKey, FlowMask)>, MatchError> {
    matches(matching).iter().map(penstock_dataplane::snapshot::Match::compile).collect()
}
