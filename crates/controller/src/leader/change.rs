//! What operators ask a leader to change.

use penstock_fabric::tenant_placement::Move;

use super::{
    Candidate, ChangeRefused, IntervalReport, Leader, LeaderError, MODE, Mode, Moved, NodeId, OUT,
    Service, Severity, TENANTS, TenantRecord, TenantSpec, Write, intent,
};

fn put<T: serde::Serialize>(key: String, record: &T) -> Write {
    Write::Put { key, value: intent::to_bytes(record), lease: None }
}

fn tenant_key(name: &str) -> String {
    format!("{TENANTS}{name}")
}

impl Leader {
    /// Places a tenant, and tells its hosts.
    ///
    /// # Errors
    /// It has no place, or the store did not take it: then nothing has changed.
    pub async fn add(&mut self, spec: TenantSpec) -> Result<TenantRecord, LeaderError> {
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
        let servers = self.servers(&name);
        self.tell_hosts(&servers).await;
        let text = format!("placed below {} on {} servers", record.placement.root, servers.len());
        self.tell(Severity::Info, "placed", &name, &text);
        Ok(record)
    }

    /// Takes a tenant away. Its queues are taken back with the next interval.
    ///
    /// # Errors
    /// There is none, or the store did not take it: then nothing has changed.
    pub async fn remove(&mut self, name: &str) -> Result<(), LeaderError> {
        if self.fabric.slot(name).is_none() {
            return Err(ChangeRefused::Unknown(name.to_owned()).into());
        }
        self.commit(vec![Write::Delete(tenant_key(name))]).await?;
        let servers = self.servers(name);
        self.fabric.remove(name)?;
        self.tell_hosts(&servers).await;
        self.tell(Severity::Info, "removed", name, "its slots and rates are free");
        Ok(())
    }

    /// Gives a tenant `more` VMs of a kind.
    ///
    /// # Errors
    /// It has no room, or the store did not take it: then nothing has changed.
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
        self.tell_hosts(&servers).await;
        let text = format!("{more} more VMs ({moved:?})");
        self.tell(Severity::Info, "grown", name, &text);
        Ok((moved, record))
    }

    /// Puts a node in or out of service; who is there moves, if there is room elsewhere.
    ///
    /// # Errors
    /// There is no such node, or the store did not take it: then nothing has changed.
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
        let mut servers = Vec::new();
        for moved in &moves {
            servers.extend(before.servers_of(moved.tenant));
            servers.extend(self.fabric.servers_of(moved.tenant));
            let name = self.fabric.name(moved.tenant).to_owned();
            match &moved.outcome {
                Ok(how) => self.tell(Severity::Info, "moved", &name, &format!("{how:?}")),
                Err(refusal) => {
                    self.tell(Severity::Warning, "stays", &name, &refusal.to_string());
                }
            }
        }
        self.tell(Severity::Info, "service", node, &format!("{service:?}"));
        self.tell_hosts(&servers).await;
        Ok(moves)
    }

    /// What this controller and its successors may do from now on.
    ///
    /// # Errors
    /// The store did not take it: then nothing has changed.
    pub async fn set_mode(&mut self, mode: Mode) -> Result<(), LeaderError> {
        self.commit(vec![put(MODE.to_owned(), &mode)]).await?;
        if self.mode == Mode::Observe && mode != Mode::Observe {
            // What was decided meanwhile was never carried out.
            self.mode = mode;
            self.back_to_stored().await?;
        }
        self.mode = mode;
        self.tell(Severity::Info, "mode", "", &format!("{mode:?}"));
        Ok(())
    }

    async fn back_to_stored(&mut self) -> Result<(), LeaderError> {
        let (stamp, interval) = (self.stamp, self.fabric.binding().interval());
        let (version, bound) = (intent::VERSION, Vec::new());
        let none = super::BindingRecord { version, stamp, interval, bound };
        let record = self.stored_binding().await?.unwrap_or(none);
        if let Err(problem) = self.fabric.resume(&record) {
            self.tell(Severity::Warning, "not-restored", "", &problem.to_string());
        }
        self.crew.assume(&self.fabric);
        Ok(())
    }

    /// Goes back to the binding before the one in force, and holds it.
    ///
    /// # Errors
    /// None is kept, or the store did not take it.
    pub async fn revert(&mut self) -> Result<IntervalReport, LeaderError> {
        let target = self.binding_before().await?;
        self.set_mode(Mode::Hold).await?;
        let before = self.fabric.binding().clone();
        let seen = self.fabric.clone_reach(&self.crew);
        let pass = self.fabric.return_to(&target, |node| seen.contains(&node));
        let mut report = IntervalReport::default();
        self.follow(before, &pass, &mut report).await?;
        let text = format!("queues of before are back; mode hold, {} steps", report.steps);
        self.tell(Severity::Warning, "reverted", "", &text);
        Ok(report)
    }

    fn servers(&self, name: &str) -> Vec<NodeId> {
        let slot = self.fabric.slot(name);
        slot.into_iter().flat_map(|slot| self.fabric.servers_of(slot)).collect()
    }

    /// These hosts' tenants have changed.
    async fn tell_hosts(&mut self, servers: &[NodeId]) {
        if self.mode == Mode::Observe {
            return;
        }
        servers.iter().for_each(|server| self.crew.must_tell(*server));
        self.next_stamp();
        self.mend().await;
    }
}

/// Names are keys and labels.
fn check_name(name: &str) -> Result<(), ChangeRefused> {
    let fine = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
    if name.is_empty() || name.len() > 63 || !name.chars().all(fine) {
        let problem = "a tenant's name has 1 to 63 letters, digits, `-`, `_` or `.`; rename it";
        let key = name.chars().take(63).collect();
        return Err(crate::intent::IntentError::Malformed { key, problem: problem.into() }.into());
    }
    Ok(())
}

impl crate::fabric_state::Fabric {
    /// The nodes of the tree that can be told something now.
    pub(super) fn clone_reach(
        &self,
        crew: &crate::carry_out::Crew,
    ) -> std::collections::BTreeSet<NodeId> {
        let topology = self.topology();
        let nodes = (0..topology.layers()).flat_map(|layer| topology.layer(layer));
        nodes.filter(|node| crew.reachable(self, *node)).collect()
    }

    /// Goes back to these queues.
    pub(super) fn return_to(
        &mut self,
        target: &[(super::TenantSlot, super::Bound)],
        reachable: impl Fn(NodeId) -> bool,
    ) -> super::Pass {
        self.with_candidates(reachable, false, |binding, topology, candidates: &[Candidate<'_>]| {
            binding.return_to(topology, candidates, target)
        })
    }
}
