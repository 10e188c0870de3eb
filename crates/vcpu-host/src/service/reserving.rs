//! Decides for which VMs the kernel reserves time, and which are refused.

use std::path::Path;

use penstock_vcpu::reservation::{self, Ask, Granted, Taken};

use super::SLOTS;
use super::held::Found;
use super::roster::Roster;
use crate::config::Config;
use crate::lease::Identity;
use crate::policy::PolicyError;

/// Part of each processor that this kernel admits for reservations, in millionths.
fn kernel_limit_ppm() -> u64 {
    let read = |name| {
        let text = std::fs::read_to_string(Path::new("/proc/sys/kernel").join(name)).ok()?;
        text.trim().parse::<i64>().ok()
    };
    let runtime = read("sched_rt_runtime_us").unwrap_or(950_000);
    reservation::kernel_limit_ppm(runtime, read("sched_rt_period_us"))
}

impl Roster {
    /// Reserves the time that VMs requested, as far as it fits. A refused VM runs by weight
    /// instead. A refusal changes the sum of the reservations, so the plan is made again.
    pub(super) fn reserve(&mut self, config: &Config) -> Taken {
        for member in &mut self.members {
            member.refused = None;
        }
        let cpus = u64::try_from(config.cpus.len()).unwrap_or(u64::MAX);
        loop {
            let asks = self.members.iter().zip(&config.vms).map(|(member, vm)| Ask {
                reserve: vm.reserve.filter(|_| member.refused.is_none()),
                weight: u64::from(vm.contract.weight.get()),
                vcpus: u64::try_from(member.threads.len()).unwrap_or(u64::MAX),
            });
            let asks: Vec<Ask> = asks.collect();
            let plan = reservation::plan(&asks, cpus, kernel_limit_ppm());
            for (member, granted) in self.members.iter_mut().zip(&plan) {
                member.granted =
                    granted.and_then(Result::ok).filter(|_| !member.threads.is_empty());
            }
            let over = plan.iter().position(|granted| matches!(granted, Some(Err(_))));
            let refused = match over {
                Some(at) => plan[at].and_then(Result::err).map(|why| (at, why.to_string())),
                None => self.apply(),
            };
            let Some((at, why)) = refused else { break };
            let why = format!("nothing is reserved, so it runs by weight: {why}");
            tracing::warn!(vm = config.vms[at].name, "{why}");
            self.members[at].refused = Some(why);
        }
        let granted = self.members.iter().filter_map(|member| {
            Some((member.granted?, u64::try_from(member.threads.len()).unwrap_or(u64::MAX)))
        });
        let taken = reservation::taken(&granted.collect::<Vec<_>>(), cpus);
        for member in self.members.iter_mut().filter(|member| member.granted.is_some()) {
            (member.problem, member.seated) = (None, None);
        }
        taken
    }

    /// Sets the reservations, reductions first. Returns the first VM that the kernel refuses, with
    /// the reason.
    fn apply(&mut self) -> Option<(usize, String)> {
        let mut wanted: Vec<(usize, Identity, Granted)> = Vec::new();
        for (at, member) in self.members.iter().enumerate() {
            let Some(granted) = member.granted else { continue };
            wanted.extend(member.threads.iter().map(|thread| (at, *thread, granted)));
        }
        let slots = self.held.release_all(|thread| wanted.iter().any(|(_, it, _)| *it == thread));
        self.found.give_up(slots);
        wanted.sort_by_key(|(_, thread, granted)| granted.runtime > self.held.runtime(*thread));
        for (at, thread, granted) in wanted {
            let Some((_, saved)) = self.found.thread(&thread) else { continue };
            let cpus = self.found.cpus(&thread).unwrap_or_default().to_vec();
            let Some(slot) = self.held.slot(thread).or_else(|| self.found.slot()) else {
                return Some((at, format!("more than {SLOTS} vCPUs; reserve for fewer")));
            };
            let Err(error) = self.held.hold(slot, &Found { thread, saved, cpus }, granted) else {
                continue;
            };
            self.found.give_up([slot]);
            // If the thread is gone, the next look notices it.
            if !matches!(error, PolicyError::Gone { .. }) {
                return Some((at, error.to_string()));
            }
        }
        None
    }

    /// Sets policies again that other programs changed. Returns true if the kernel refused a
    /// policy, so that all VMs must be seated again.
    pub(super) fn keep(&mut self) -> bool {
        let lost = self.held.keep();
        for (thread, why) in &lost {
            tracing::warn!(vm = self.name(thread), "its reservation was changed by others: {why}");
        }
        !lost.is_empty()
    }

    /// Releases all reservations.
    pub fn release(&mut self) {
        let slots = self.held.release_all(|_| false);
        self.found.give_up(slots);
    }
}
