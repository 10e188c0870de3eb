//! The VMs of a configuration, as far as they are there.

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::Arc;

use nix::sched::{CpuSet, sched_getaffinity};
use nix::unistd::Pid;
use penstock_vcpu::Mode;
use penstock_vcpu::seating::{Place, Present, Seated, seat};

use super::SLOTS;
use super::gauge::Gauge;
use crate::boost::seat::Seat;
use crate::cgroup::Cgroup;
use crate::config::{Config, VmConfig};
use crate::lease::{Identity, LeaseTable};
use crate::policy::{self, Policy};
use crate::restore::{self, Before};
use crate::state::VmState;
use crate::weight::Weigher;

/// A VM and what is known of it.
#[derive(Debug)]
struct Member {
    threads: Vec<Identity>,
    seated: Option<Seated>,
    /// Why it is not there, or does not have what it asked for.
    problem: Option<String>,
}

/// See the module's text.
#[derive(Debug)]
pub(super) struct Roster {
    /// Names of the VMs, for logs.
    names: Vec<String>,
    members: Vec<Member>,
    /// Slots in the table, and how each thread was scheduled when it was found.
    slots: HashMap<Identity, (usize, Policy)>,
    before: Before,
    owner: Identity,
    table: Arc<LeaseTable>,
    looked: bool,
}

impl Roster {
    pub fn new(config: &Config, owner: Identity, table: Arc<LeaseTable>) -> Self {
        let member = |_: &VmConfig| Member { threads: Vec::new(), seated: None, problem: None };
        Self {
            names: config.vms.iter().map(|vm| vm.name.clone()).collect(),
            members: config.vms.iter().map(member).collect(),
            slots: HashMap::new(),
            before: Before::default(),
            owner,
            table,
            looked: false,
        }
    }

    /// Looks for the threads of all VMs; whether any came or went.
    pub fn look(&mut self, config: &Config) -> bool {
        let mut changed = !std::mem::replace(&mut self.looked, true);
        for (member, vm) in self.members.iter_mut().zip(&config.vms) {
            let (threads, problem) = match vm.find() {
                Ok(threads) => (threads, None),
                Err(error) => (Vec::new(), Some(error.to_string())),
            };
            if let Some(problem) = problem.filter(|_| member.problem.is_none()) {
                tracing::warn!(vm = vm.name, "{problem}");
                member.problem = Some(problem);
            }
            if threads != member.threads {
                if !threads.is_empty() {
                    member.problem = None;
                }
                member.threads = threads;
                changed = true;
            }
        }
        changed
    }

    /// Places all, and says which vCPUs each processor has.
    pub fn seats(&mut self, config: &Config) -> HashMap<u32, Vec<Seat>> {
        let there: Vec<usize> =
            (0..self.members.len()).filter(|at| !self.members[*at].threads.is_empty()).collect();
        let present: Vec<Present> = there
            .iter()
            .map(|at| Present {
                contract: config.vms[*at].contract,
                vcpus: u16::try_from(self.members[*at].threads.len()).unwrap_or(u16::MAX),
            })
            .collect();
        let seated = seat(&present, &config.cpus, config.limits);
        self.remember(config);
        let mut seats: HashMap<u32, Vec<Seat>> = HashMap::new();
        let groups = self.groups();
        for (at, seated) in there.into_iter().zip(seated) {
            let name: Arc<str> = config.vms[at].name.as_str().into();
            if let Some(problem) = &seated.problem {
                tracing::warn!(vm = %name, "{problem}");
            }
            let member = &mut self.members[at];
            member.problem.clone_from(&seated.problem);
            for (thread, place) in member.threads.iter().zip(&seated.vcpus) {
                let Some((slot, saved)) = self.slots.get(thread).copied() else { continue };
                let Place { cpu, share_ppm, base_ppm } = *place;
                if let Err(error) = restore::confine(thread.tid, &[cpu]) {
                    tracing::warn!(vm = %name, cpu, %error, "vCPU cannot be moved");
                    continue;
                }
                seats.entry(cpu).or_default().push(Seat {
                    vm: Arc::clone(&name),
                    thread: *thread,
                    slot,
                    saved,
                    contract: seated.contract,
                    base_ppm,
                    share_ppm,
                    weigher: groups.get(thread).cloned().unwrap_or(Weigher::Nice),
                });
            }
            member.seated = Some(seated);
        }
        seats
    }

    /// Notes how threads and cgroups are before they are changed the first time.
    fn remember(&mut self, config: &Config) {
        let threads: Vec<Identity> =
            self.members.iter().flat_map(|member| member.threads.iter().copied()).collect();
        self.slots.retain(|thread, _| threads.contains(thread));
        self.before.affinities.retain(|(thread, _)| threads.contains(thread));
        for thread in threads {
            if self.slots.contains_key(&thread) {
                continue;
            }
            let used = |slot: &usize| self.slots.values().any(|(other, _)| other == slot);
            let free = (0..SLOTS).find(|slot| !used(slot));
            let (Some(slot), Ok(saved)) = (free, policy::get(thread.tid)) else { continue };
            self.slots.insert(thread, (slot, saved));
            self.before.affinities.extend(affinity(thread));
            if let Ok(group) = Cgroup::of_thread(thread.tid)
                && !group.is_root()
                && !self.before.weights.iter().any(|(path, _)| path == group.path())
                && let Ok(weight) = group.weight()
            {
                self.before.weights.push((group.path().to_owned(), weight));
            }
        }
        let end = self.slots.values().map(|(slot, _)| slot + 1).max().unwrap_or(0);
        let saved = self.table.set_end(end).and_then(|()| self.before.save(&config.run_dir));
        if let Err(error) = saved {
            tracing::error!(%error, pid = self.owner.pid, "what was before cannot be noted");
        }
    }

    /// By what weights are set: by its cgroup if a VM has one to itself, else by nice values.
    fn groups(&self) -> HashMap<Identity, Weigher> {
        let mut inside: HashMap<PathBuf, (Cgroup, Vec<(usize, Identity)>)> = HashMap::new();
        for (vm, member) in self.members.iter().enumerate() {
            for thread in &member.threads {
                if let Ok(group) = Cgroup::of_thread(thread.tid)
                    && !group.is_root()
                {
                    let path = group.path().to_owned();
                    inside.entry(path).or_insert((group, Vec::new())).1.push((vm, *thread));
                }
            }
        }
        let mut weighers = HashMap::new();
        for (group, members) in inside.into_values() {
            let vm = members.first().map(|(vm, _)| *vm);
            if members.iter().any(|(other, _)| Some(*other) != vm) {
                continue;
            }
            let vcpus = u64::try_from(members.len()).unwrap_or(1);
            for (at, (_, thread)) in members.into_iter().enumerate() {
                let group = group.clone();
                let first = at == 0;
                let by = if first { Weigher::Group { group, vcpus } } else { Weigher::Left };
                weighers.insert(thread, by);
            }
        }
        weighers
    }

    pub fn has(&self, thread: &Identity) -> bool {
        self.members.iter().any(|member| member.threads.contains(thread))
    }

    /// Name of its VM, for logs; `-` if that is gone by now.
    pub fn name(&self, thread: &Identity) -> &str {
        let at = self.members.iter().position(|member| member.threads.contains(thread));
        at.map_or("-", |at| &self.names[at])
    }

    /// A thread has exited: the next look finds the VM changed.
    pub fn forget(&mut self, thread: &Identity) {
        for member in &mut self.members {
            member.threads.retain(|other| other != thread);
        }
        self.looked = false;
    }

    pub fn complain(&mut self, thread: &Identity, why: &str) {
        for member in self.members.iter_mut().filter(|m| m.threads.contains(thread)) {
            member.problem = Some(why.to_owned());
        }
    }

    pub fn states(&self, config: &Config, gauge: &Gauge) -> Vec<VmState> {
        let on = |cpu: u32| -> Vec<Identity> {
            let members = self.members.iter();
            let seated = members.filter_map(|m| Some((m, m.seated.as_ref()?)));
            seated
                .flat_map(|(m, seated)| m.threads.iter().zip(&seated.vcpus))
                .filter(|(_, place)| place.cpu == cpu)
                .map(|(thread, _)| *thread)
                .collect()
        };
        let all: HashMap<u32, u64> =
            config.cpus.iter().map(|cpu| (*cpu, gauge.ran(&on(*cpu)))).collect();
        let vm = |(member, vm): (&Member, &VmConfig)| {
            let contract = member.seated.as_ref().map_or(vm.contract, |seated| seated.contract);
            let places = member.seated.iter().flat_map(|seated| &seated.vcpus);
            let vcpus = member.threads.iter().zip(places).map(|(thread, place)| {
                let ran = all.get(&place.cpu).copied().unwrap_or(0);
                gauge.vcpu(*thread, place.cpu, place.share_ppm, ran)
            });
            VmState {
                name: vm.name.clone(),
                mode: mode(contract.mode).to_owned(),
                deadline_ms: std::time::Duration::from_nanos(contract.deadline.0).as_secs_f64()
                    * 1e3,
                weight: contract.weight.get(),
                problem: member.problem.clone(),
                vcpus: vcpus.collect(),
            }
        };
        self.members.iter().zip(&config.vms).map(vm).collect()
    }
}

const fn mode(mode: Mode) -> &'static str {
    match mode {
        Mode::None => "none",
        Mode::Periodic => "periodic",
        Mode::Aperiodic => "aperiodic",
        Mode::Driver => "driver",
    }
}

fn affinity(thread: Identity) -> Option<(Identity, Vec<u32>)> {
    let tid = i32::try_from(thread.tid).ok()?;
    let set = sched_getaffinity(Pid::from_raw(tid)).ok()?;
    let cpus = (0..CpuSet::count()).filter(|cpu| set.is_set(*cpu).unwrap_or(false));
    Some((thread, cpus.filter_map(|cpu| u32::try_from(cpu).ok()).collect()))
}
