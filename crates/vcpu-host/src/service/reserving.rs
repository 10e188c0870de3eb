//! Decides for which VMs the kernel reserves time, and refuses the reservations of all other VMs.

use std::path::Path;

use penstock_vcpu::reservation::{self, Ask, Granted, Taken};

use super::SLOTS;
use super::held::Found;
use super::roster::Roster;
use crate::config::Config;
use crate::lease::Identity;
use crate::policy::PolicyError;

/// Part of each processor, in millionths, that the running kernel admits for reservations.
fn kernel_limit_ppm() -> u64 {
    let read = |name| {
        let text = std::fs::read_to_string(Path::new("/proc/sys/kernel").join(name)).ok()?;
        text.trim().parse::<i64>().ok()
    };
    let runtime = read("sched_rt_runtime_us").unwrap_or(950_000);
    reservation::kernel_limit_ppm(runtime, read("sched_rt_period_us"))
}

impl Roster {
    /// Reserves the time that VMs request, as far as the processors have free time. A VM with a
    /// refused reservation runs by weight instead. After each refusal, the function plans all
    /// reservations again, because the sum of the reservations has changed.
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
            let why =
                format!("the kernel reserves no time for the VM, so the VM runs by weight: {why}");
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

    /// Sets the planned reservations. The function sets shorter run times first, to make room for
    /// longer run times. Returns the first VM that the kernel refuses, with the reason.
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
                return Some((
                    at,
                    format!(
                        "more than {SLOTS} vCPUs have reservations; reserve time for fewer vCPUs"
                    ),
                ));
            };
            let Err(error) = self.held.hold(slot, &Found { thread, saved, cpus }, granted) else {
                continue;
            };
            self.found.give_up([slot]);
            // The next look notices that a thread has exited.
            if !matches!(error, PolicyError::Gone { .. }) {
                return Some((at, error.to_string()));
            }
        }
        None
    }

    /// Sets the policies again that other programs changed. Returns true if the kernel refused a
    /// policy, so that the service must assign the VMs to processors again.
    pub(super) fn keep(&mut self) -> bool {
        let lost = self.held.keep();
        for (thread, why) in &lost {
            tracing::warn!(
                vm = self.name(thread),
                "a program changed the vCPU's reservation: {why}"
            );
        }
        !lost.is_empty()
    }

    /// Ends all reservations and restores the policies of their threads.
    pub fn release(&mut self) {
        let slots = self.held.release_all(|_| false);
        self.found.give_up(slots);
    }
}
