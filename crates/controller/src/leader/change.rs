//! Executes the changes that operators request from a leader. Operators can change tenants, the
//! states of nodes, the controller's mode and the epoch.

use std::collections::BTreeSet;

use penstock_fabric::hose::Need;
use penstock_fabric::queue_binding::Step;
use penstock_fabric::tenant_placement::Move;
use penstock_fabric::topology::LinkId;
use penstock_units::NAME_BYTES_MAX;

use super::{
    Candidate, ChangeRefused, EPOCHS, Fabric, IntervalReport, Leader, LeaderError, MODE, Mode,
    Moved, NodeId, OUT, Service, Severity, Stamp, TENANTS, TenantRecord, TenantSlot, TenantSpec,
    Write, intent,
};
use crate::fabric_state::permits;
use crate::stamp::EPOCH_MAX;

fn put<T: serde::Serialize>(key: String, record: &T) -> Write {
    Write::Put { key, value: intent::to_bytes(record), lease: None }
}

fn tenant_key(name: &str) -> String {
    format!("{TENANTS}{name}")
}

impl Leader {
    /// Places a tenant, and sends new plans to the hosts that run the tenant's VMs.
    ///
    /// # Errors
    /// Returns an error if the tenant cannot be placed or the store refused the change. After an
    /// error, no tenant was added.
    pub async fn add(&mut self, spec: TenantSpec) -> Result<TenantRecord, LeaderError> {
        let mut added = self.add_all(vec![spec]).await;
        added.pop().expect("one tenant was added")
    }

    /// Places tenants in the order of the list, and then informs the hosts of all placed tenants.
    /// Placement stops if the store fails or another controller leads.
    pub async fn add_all(
        &mut self,
        specs: Vec<TenantSpec>,
    ) -> Vec<Result<TenantRecord, LeaderError>> {
        let (mut added, mut changes) = (Vec::new(), Vec::new());
        for spec in specs {
            let name = spec.name.clone();
            let placed = self.place(spec).await;
            if placed.is_ok() {
                let slot = self.fabric.slot(&name).expect("it was placed");
                changes.push(Changed { slot, links: Vec::new() });
            }
            let ends = matches!(&placed, Err(error) if !matches!(error, LeaderError::Refused(_)));
            added.push(placed);
            if ends {
                break;
            }
        }
        let servers: BTreeSet<NodeId> =
            changes.iter().flat_map(|changed| self.fabric.servers_of(changed.slot)).collect();
        self.make_room(&changes, servers).await;
        added
    }

    async fn place(&mut self, spec: TenantSpec) -> Result<TenantRecord, LeaderError> {
        let name = spec.name.clone();
        check_name(&name)?;
        let record = match self.fabric.add(spec) {
            Ok(record) => record,
            Err(refused) => {
                self.tell(Severity::Warning, "refused", &name, &refused.to_string());
                return Err(refused.into());
            }
        };
        if let Err(error) = self.commit(vec![put(tenant_key(&name), &record)]).await {
            let _ = self.fabric.remove(&name);
            return Err(error);
        }
        let servers = self.servers(&name).len();
        let text = format!("placed below {} on {servers} servers", record.placement.root);
        self.tell(Severity::Info, "placed", &name, &text);
        Ok(record)
    }

    /// Removes a tenant. The leader releases the tenant's queues in a later interval.
    ///
    /// # Errors
    /// Returns an error if no tenant has this name or the store refused the change. After an error,
    /// no tenant was removed.
    pub async fn remove(&mut self, name: &str) -> Result<(), LeaderError> {
        if self.fabric.slot(name).is_none() {
            return Err(ChangeRefused::Unknown(name.to_owned()).into());
        }
        self.commit(vec![Write::Delete(tenant_key(name))]).await?;
        let servers = self.servers(name);
        self.fabric.remove(name)?;
        self.tell_hosts(servers).await;
        self.tell(Severity::Info, "removed", name, "the tenant's slots and rates are free");
        Ok(())
    }

    /// Adds `more` VMs of a class to a tenant.
    ///
    /// # Errors
    /// Returns an error if the datacenter has no room or the store refused the change. After an
    /// error, the tenant is unchanged.
    pub async fn grow(
        &mut self,
        name: &str,
        class: usize,
        more: u32,
        may_move: bool,
    ) -> Result<(Moved, TenantRecord), LeaderError> {
        let before = self.fabric.clone();
        let mut servers = self.servers(name);
        let (moved, record) = self.fabric.grow(name, class, more, may_move)?;
        if let Err(error) = self.commit(vec![put(tenant_key(name), &record)]).await {
            self.fabric = before;
            return Err(error);
        }
        servers.extend(self.servers(name));
        if let Some(slot) = self.fabric.slot(name) {
            let links = before.links(slot).to_vec();
            self.make_room(&[Changed { slot, links }], servers).await;
        }
        let text = format!("{more} more VMs; {moved}");
        self.tell(Severity::Info, "grown", name, &text);
        Ok((moved, record))
    }

    /// Sets whether a server or switch is in service, drained or failed. The VMs on a drained or
    /// failed node move if other servers have room.
    ///
    /// # Errors
    /// Returns an error if the topology has no node with this name or the store refused the change.
    /// After an error, the node's state is unchanged.
    pub async fn set_service(
        &mut self,
        node: &str,
        service: Service,
    ) -> Result<Vec<Move>, LeaderError> {
        let before = self.fabric.clone();
        let moves = self.fabric.set_service(node, service, true)?;
        let key = format!("{OUT}{node}");
        let mut writes = vec![match service {
            Service::In => Write::Delete(key),
            Service::Drained => put(key, &false),
            Service::Failed => put(key, &true),
        }];
        for moved in moves.iter().filter(|moved| moved.outcome.is_ok()) {
            let record = self.fabric.record(moved.tenant);
            writes.push(put(tenant_key(&record.spec.name), &record));
        }
        if let Err(error) = self.commit(writes).await {
            self.fabric = before;
            return Err(error);
        }
        let (mut servers, mut changes) = (Vec::new(), Vec::new());
        for moved in &moves {
            let slot = moved.tenant;
            servers.extend(before.servers_of(slot));
            servers.extend(self.fabric.servers_of(slot));
            changes.push(Changed { slot, links: before.links(slot).to_vec() });
            let name = self.fabric.name(moved.tenant).to_owned();
            match &moved.outcome {
                Ok(how) => self.tell(Severity::Info, "moved", &name, &how.to_string()),
                Err(refusal) => {
                    self.tell(Severity::Warning, "stays", &name, &refusal.to_string());
                }
            }
        }
        self.tell(Severity::Info, "service", node, &service.to_string());
        self.make_room(&changes, servers).await;
        Ok(moves)
    }

    /// Sets the mode of this controller and its successors.
    ///
    /// # Errors
    /// Returns an error if the store refused the change. After an error, the mode is unchanged.
    pub async fn set_mode(&mut self, mode: Mode) -> Result<(), LeaderError> {
        self.commit(vec![put(MODE.to_owned(), &mode)]).await?;
        if self.mode == Mode::Observe && mode != Mode::Observe {
            // Decisions from observe mode were never carried out, so the leader returns to the
            // stored state.
            self.mode = mode;
            self.back_to_stored().await?;
        }
        self.mode = mode;
        self.tell(Severity::Info, "mode", "", &mode.to_string());
        Ok(())
    }

    /// Raises the epoch of this controller and its successors to at least `at_least`. Returns the
    /// epoch after the change. After the epoch changes, the leader sends every switch its intended
    /// state again, with a stamp of the new epoch. After a change of the epoch, the caller must end
    /// the sessions of the hosts' agents, so that the agents start new sessions.
    ///
    /// # Errors
    /// Returns an error if the epoch is above [`EPOCH_MAX`] or the store refused the change. After
    /// an error, the epoch is unchanged.
    pub async fn raise_epoch(&mut self, at_least: u64) -> Result<u64, LeaderError> {
        if at_least > EPOCH_MAX {
            return Err(LeaderError::Epoch { asked: at_least, most: EPOCH_MAX });
        }
        if at_least <= self.stamp.epoch {
            return Ok(self.stamp.epoch);
        }
        // The store keeps the difference, so that a successor's epoch is higher than this
        // controller's epoch.
        let more = at_least.saturating_sub(self.leadership.created.0);
        self.commit(vec![put(EPOCHS.to_owned(), &more)]).await?;
        self.stamp = Stamp { epoch: at_least, generation: 0 };
        self.tell(Severity::Warning, "epoch", "", &format!("raised to {at_least}"));
        self.crew.begin_again(&self.fabric);
        if self.mode != Mode::Observe {
            self.next_stamp();
            self.mend().await;
        }
        Ok(at_least)
    }

    async fn back_to_stored(&mut self) -> Result<(), LeaderError> {
        let (stamp, interval) = (self.stamp, self.fabric.binding().interval());
        let (version, bound) = (intent::VERSION, Vec::new());
        let none = super::BindingRecord { version, stamp, interval, bound };
        let record = self.load_binding().await?.unwrap_or(none);
        if let Err(problem) = self.fabric.resume(&record) {
            self.tell(Severity::Warning, "not-restored", "", &problem.to_string());
        }
        self.fabric.reserve_all();
        let movers = self.unfinished(&record).await?;
        self.resume_crew(movers);
        // Hosts that connected in observe mode have got no plan.
        self.fabric.topology().layer(0).for_each(|server| self.crew.must_tell(server));
        Ok(())
    }

    /// Restores the previous binding and changes the mode to hold.
    ///
    /// # Errors
    /// Returns an error if the store has no earlier binding or refused the change.
    pub async fn revert(&mut self) -> Result<IntervalReport, LeaderError> {
        let target = self.binding_before().await?;
        self.set_mode(Mode::Hold).await?;
        let pass = |fabric: &mut Fabric, seen: &[bool]| {
            fabric.return_to(&target, |node| seen[node.index()])
        };
        let mut report = IntervalReport::default();
        self.decide(pass, &mut report).await?;
        let text = format!(
            "the previous queues are restored in {} steps; the mode is now `hold`",
            report.steps
        );
        self.tell(Severity::Warning, "reverted", "", &text);
        Ok(report)
    }

    fn servers(&self, name: &str) -> Vec<NodeId> {
        let slot = self.fabric.slot(name);
        slot.into_iter().flat_map(|slot| self.fabric.servers_of(slot)).collect()
    }

    /// Reserves bandwidth on ports for tenants that arrived, grew or moved, and then informs the
    /// hosts of these tenants. Hosts stop marking frames for the queues of an earlier placement.
    async fn make_room(&mut self, changes: &[Changed], servers: impl IntoIterator<Item = NodeId>) {
        let steps = changes.iter().flat_map(|c| self.fabric.reserve(c.slot, &c.links));
        let steps: Vec<Step> = steps.collect();
        self.headroom_changed = true;
        if self.mode == Mode::Observe || changes.is_empty() {
            return;
        }
        self.next_stamp();
        let slots: Vec<TenantSlot> = changes.iter().map(|changed| changed.slot).collect();
        let behind = self.crew.make_room(&self.fabric, &slots, &steps, self.stamp).await;
        self.troubles("behind", &behind);
        self.tell_hosts(servers).await;
    }

    /// Sends new plans to hosts on which tenants have changed.
    async fn tell_hosts(&mut self, servers: impl IntoIterator<Item = NodeId>) {
        if self.mode == Mode::Observe {
            return;
        }
        servers.into_iter().for_each(|server| self.crew.must_tell(server));
        self.next_stamp();
        self.mend().await;
    }
}

/// Tenant that arrived, grew or moved.
struct Changed {
    slot: TenantSlot,
    /// Bandwidth that the tenant had reserved on links before it grew or moved. Empty for a tenant
    /// that arrived.
    links: Vec<(LinkId, Need)>,
}

/// Checks that a tenant's name can be used in keys of the store and in labels of metrics.
fn check_name(name: &str) -> Result<(), ChangeRefused> {
    penstock_units::check_name(name).map_err(|mistake| {
        let name = name.chars().take(NAME_BYTES_MAX).collect();
        ChangeRefused::Name { name, mistake }
    })
}

impl Fabric {
    /// Returns for each server and switch whether it can be reached now.
    pub(super) fn reach(&self, crew: &crate::carry_out::Crew) -> Vec<bool> {
        let topology = self.topology();
        let nodes = (0..topology.layers()).flat_map(|layer| topology.layer(layer));
        nodes.map(|node| crew.reachable(self, node)).collect()
    }

    /// Gives tenants the queues of the earlier binding `target`.
    pub(super) fn return_to(
        &mut self,
        target: &[(TenantSlot, super::Bound)],
        reachable: impl Fn(NodeId) -> bool,
    ) -> super::Pass {
        let settings = self.binding().settings();
        let target = target.iter().filter(|(_, bound)| permits(settings, bound));
        let target: Vec<_> = target.cloned().collect();
        self.with_candidates(reachable, false, |binding, topology, candidates: &[Candidate<'_>]| {
            binding.return_to(topology, candidates, &target)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_name_of_a_tenant_of_a_host_is_allowed() {
        assert!(check_name(&"x".repeat(NAME_BYTES_MAX)).is_ok());
        for bad in [String::new(), "x".repeat(NAME_BYTES_MAX + 1), "a/b".to_owned()] {
            let error = check_name(&bad).unwrap_err().to_string();
            assert!(error.contains("write 1 to 64 characters"), "{error}");
            assert!(!error.contains("store"), "the file is wrong, not the store: {error}");
        }
    }
}
