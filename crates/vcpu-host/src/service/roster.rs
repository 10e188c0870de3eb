//! The VMs of a configuration, as far as they are there.

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::Arc;

use nix::sched::{CpuSet, sched_getaffinity};
use nix::unistd::Pid;
use penstock_vcpu::Mode;
use penstock_vcpu::reservation::Granted;
use penstock_vcpu::seating::{Place, Present, Seated, seat};

use super::SLOTS;
use super::gauge::Gauge;
use super::held::Held;
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
pub(super) struct Member {
    pub(super) threads: Vec<Identity>,
    pub(super) seated: Option<Seated>,
    /// What is reserved for its vCPUs.
    pub(super) granted: Option<Granted>,
    /// Why nothing is, although it asked for it.
    pub(super) refused: Option<String>,
    /// Why it is not there, or does not have what it asked for.
    pub(super) problem: Option<String>,
}

/// See the module's text.
#[derive(Debug)]
pub(super) struct Roster {
    /// Names of the VMs, for logs.
    names: Vec<String>,
    pub(super) members: Vec<Member>,
    /// Slots in the table, and how each thread was scheduled when it was found.
    pub(super) slots: HashMap<Identity, (usize, Policy)>,
    pub(super) before: Before,
    pub(super) held: Held,
    /// Whose threads were whose, of those that are gone too.
    whose: HashMap<Identity, usize>,
    owner: Identity,
    table: Arc<LeaseTable>,
    looked: bool,
}

impl Roster {
    pub fn new(config: &Config, owner: Identity, table: Arc<LeaseTable>) -> Self {
        let member = |_: &VmConfig| Member {
            threads: Vec::new(),
            seated: None,
            granted: None,
            refused: None,
            problem: None,
        };
        Self {
            names: config.vms.iter().map(|vm| vm.name.clone()).collect(),
            members: config.vms.iter().map(member).collect(),
            slots: HashMap::new(),
            before: Before::default(),
            held: Held::new(Arc::clone(&table)),
            whose: HashMap::new(),
            owner,
            table,
            looked: false,
        }
    }

    /// Looks for the threads of all VMs; whether any came or went.
    pub fn look(&mut self, config: &Config) -> bool {
        let mut changed = !std::mem::replace(&mut self.looked, true);
        for (at, (member, vm)) in self.members.iter_mut().zip(&config.vms).enumerate() {
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
                self.whose.extend(threads.iter().map(|thread| (*thread, at)));
                member.threads = threads;
                changed = true;
            }
        }
        if self.whose.len() > 2 * SLOTS {
            let members = &self.members;
            self.whose.retain(|thread, at| members[*at].threads.contains(thread));
        }
        changed | self.keep()
    }

    /// Places all, and says which vCPUs each processor has.
    pub fn seats(&mut self, config: &Config) -> HashMap<u32, Vec<Seat>> {
        self.remember(config);
        let taken = self.reserve(config);
        let placed = |member: &Member| !member.threads.is_empty() && member.granted.is_none();
        let there: Vec<usize> =
            (0..self.members.len()).filter(|at| placed(&self.members[*at])).collect();
        let present: Vec<Present> = there
            .iter()
            .map(|at| Present {
                contract: config.vms[*at].contract,
                vcpus: u16::try_from(self.members[*at].threads.len()).unwrap_or(u16::MAX),
            })
            .collect();
        let seated = seat(&present, &config.cpus, config.limits, taken);
        let mut seats: HashMap<u32, Vec<Seat>> = HashMap::new();
        let groups = self.groups();
        for (at, seated) in there.into_iter().zip(seated) {
            let name: Arc<str> = config.vms[at].name.as_str().into();
            if let Some(problem) = &seated.problem {
                tracing::warn!(vm = %name, "{problem}");
            }
            let member = &mut self.members[at];
            member.problem = seated.problem.clone().or_else(|| member.refused.clone());
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
        let threads_count = threads.len();
        self.slots.retain(|thread, _| threads.contains(thread));
        self.held.release_all(|thread| threads.contains(&thread));
        self.before.affinities.retain(|(thread, _)| threads.contains(thread));
        for thread in threads {
            if self.slots.contains_key(&thread) {
                continue;
            }
            let (Some(slot), Ok(saved)) = (self.free(), policy::get(thread.tid)) else { continue };
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
        // As many more for reservations, which have slots of their own.
        let end = self.slots.values().map(|(slot, _)| slot + 1).max().unwrap_or(0);
        let end = (end.max(self.held.slots().max().map_or(0, |slot| slot + 1)) + threads_count)
            .min(SLOTS);
        let saved = self.table.set_end(end).and_then(|()| self.before.save(&config.run_dir));
        if let Err(error) = saved {
            tracing::error!(%error, pid = self.owner.pid, "what was before cannot be noted");
        }
    }

    /// A slot of the table that nobody has.
    pub(super) fn free(&self) -> Option<usize> {
        let mut used = vec![false; SLOTS];
        for slot in self.slots.values().map(|(slot, _)| *slot).chain(self.held.slots()) {
            used[slot] = true;
        }
        used.iter().position(|used| !used)
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

    /// Name of the VM it belongs to, or did while it was there, for logs.
    pub fn name(&self, thread: &Identity) -> &str {
        self.whose.get(thread).map_or("-", |at| &self.names[*at])
    }

    /// VMs came or went: shares count from here on.
    pub fn begin_anew(&mut self) {
        self.held.begin_anew();
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
        // What is reserved runs anywhere: each processor is told its part.
        let apart = self.held.ran() / u64::try_from(config.cpus.len()).unwrap_or(1).max(1);
        let all: HashMap<u32, u64> =
            config.cpus.iter().map(|cpu| (*cpu, gauge.ran(&on(*cpu)) + apart)).collect();
        let vm = |(member, vm): (&Member, &VmConfig)| {
            let contract = member.seated.as_ref().map_or(vm.contract, |seated| seated.contract);
            let places = member.seated.iter().flat_map(|seated| &seated.vcpus);
            let vcpus = member.threads.iter().zip(places).map(|(thread, place)| {
                let ran = all.get(&place.cpu).copied().unwrap_or(0);
                gauge.vcpu(*thread, place.cpu, place.share_ppm, ran)
            });
            let held = member.threads.iter().filter_map(|thread| self.held.state(*thread));
            let deadline = member.granted.map_or(contract.deadline, |granted| granted.period);
            let mode = if member.granted.is_some() { "reserved" } else { mode(contract.mode) };
            VmState {
                name: vm.name.clone(),
                mode: mode.to_owned(),
                deadline_ms: std::time::Duration::from_nanos(deadline.0).as_secs_f64() * 1e3,
                weight: contract.weight.get(),
                problem: member.problem.clone(),
                vcpus: vcpus.chain(held).collect(),
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
    Some((thread, processors(thread.tid)?))
}

/// Those that the thread `tid` may use; 0 is the caller.
pub(super) fn processors(tid: u32) -> Option<Vec<u32>> {
    let set = sched_getaffinity(Pid::from_raw(i32::try_from(tid).ok()?)).ok()?;
    let cpus = (0..CpuSet::count()).filter(|cpu| set.is_set(*cpu).unwrap_or(false));
    Some(cpus.filter_map(|cpu| u32::try_from(cpu).ok()).collect())
}
