//! The configured VMs, with the threads of running VMs.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use penstock_vcpu::Mode;
use penstock_vcpu::reservation::Granted;
use penstock_vcpu::seating::{Place, Present, Seated, seat};

use super::SLOTS;
use super::as_found::AsFound;
use super::complaint::{self, Complaint};
use super::gauge::Gauge;
use super::held::Held;
use crate::boost::seat::Seat;
use crate::cgroup::Cgroup;
use crate::clock;
use crate::config::{Config, VmConfig};
use crate::divide::{self, Divider};
use crate::lease::{Identity, LeaseTable};
use crate::restore;
use crate::state::VmState;
use crate::weight::{GroupWeight, Weigher};

/// State of a configured VM, with its threads, reservation and complaints.
#[derive(Debug, Default)]
pub(super) struct Member {
    pub(super) threads: Vec<Identity>,
    /// The cgroups of the VM's threads, as in `/proc/PID/cgroup`.
    groups: Vec<String>,
    pub(super) seated: Option<Seated>,
    /// Reservation of each vCPU of the VM; `None` without a reservation.
    pub(super) granted: Option<Granted>,
    /// Reason why the VM's requested reservation was refused.
    pub(super) refused: Option<String>,
    /// Reason why the VM does not run, or does not get the time that it requested.
    pub(super) problem: Option<String>,
    /// Complaints of scheduling threads about the VM's vCPUs since the VM was assigned to
    /// processors.
    pub(super) complaints: Vec<(Identity, Complaint)>,
    /// The last complaint about the VM that the service logged.
    logged: Option<String>,
}

/// State of all configured VMs.
#[derive(Debug)]
pub(super) struct Roster {
    /// Names of the configured VMs, for the log.
    names: Vec<String>,
    pub(super) members: Vec<Member>,
    pub(super) found: AsFound,
    pub(super) held: Held,
    /// Index of the VM of each thread, including threads that have exited.
    whose: HashMap<Identity, usize>,
    looked: bool,
}

/// Methods of setting the weights of vCPUs.
#[derive(Debug, Default)]
struct Weighers {
    of: HashMap<Identity, Weigher>,
    groups: Vec<Cgroup>,
    /// For each VM, the cgroup directory below which the VM's weight counts; `None` if the weight
    /// counts everywhere.
    within: Vec<Option<PathBuf>>,
}

impl Roster {
    pub fn new(config: &Config, table: Arc<LeaseTable>) -> Self {
        Self {
            names: config.vms.iter().map(|vm| vm.name.clone()).collect(),
            members: config.vms.iter().map(|_| Member::default()).collect(),
            found: AsFound::new(),
            held: Held::new(table),
            whose: HashMap::new(),
            looked: false,
        }
    }

    /// Adopts the list of VMs of the new configuration `config`. A VM keeps its threads if its name
    /// and source are the same in the new configuration. The next call of [`Self::look`] releases
    /// the threads of all VMs that have no match in the new configuration.
    pub fn take_over(&mut self, before: &Config, config: &Config) {
        let mut members: HashMap<&String, Member> =
            before.vms.iter().map(|vm| &vm.name).zip(self.members.drain(..)).collect();
        let mut kept = |vm: &VmConfig| {
            let was = before.vms.iter().find(|was| was.name == vm.name)?;
            let same = was.source == vm.source && was.threads == vm.threads;
            members.remove(&vm.name).filter(|_| same)
        };
        self.members = config
            .vms
            .iter()
            .map(|vm| Member { problem: None, ..kept(vm).unwrap_or_default() })
            .collect();
        self.names = config.vms.iter().map(|vm| vm.name.clone()).collect();
        let all = self.members.iter().enumerate();
        self.whose = all.flat_map(|(at, it)| it.threads.iter().map(move |t| (*t, at))).collect();
        self.looked = false;
    }

    /// Looks for the threads of all configured VMs. Returns whether a thread started or ended.
    pub fn look(&mut self, config: &Config) -> bool {
        if let Err(error) = self.found.settle(clock::now(), &config.run_dir) {
            tracing::error!(%error, "the threads' former settings cannot be saved");
        }
        let mut changed = !std::mem::replace(&mut self.looked, true);
        let mut taken: HashMap<Identity, usize> = HashMap::new();
        for (at, (member, vm)) in self.members.iter_mut().zip(&config.vms).enumerate() {
            let (threads, problem) = match vm.find(&member.threads) {
                Ok(threads) => match threads.iter().find_map(|thread| taken.get(thread)) {
                    Some(other) => (Vec::new(), Some(twice(&config.vms[*other].name))),
                    None => (threads, None),
                },
                Err(error) => (Vec::new(), Some(error.to_string())),
            };
            taken.extend(threads.iter().map(|thread| (*thread, at)));
            let news = threads != member.threads;
            // libvirt creates a vCPU in one cgroup and moves it to another.
            let groups = threads.iter().map(groups_of).collect();
            changed |= std::mem::replace(&mut member.groups, groups) != member.groups;
            if let Some(problem) = problem.filter(|_| news || member.problem.is_none()) {
                tracing::warn!(vm = vm.name, "{problem}");
                member.problem = Some(problem);
            }
            if news {
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

    /// Assigns the vCPUs of all VMs to processors, and returns the vCPUs of each processor; `None`
    /// if the scheduler may change no thread now.
    pub fn seats(&mut self, config: &Config) -> Option<HashMap<u32, Vec<Seat>>> {
        let weighers = self.weighers();
        let without = self.note(config, &weighers)?;
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
        for (at, seated) in there.into_iter().zip(seated) {
            let name: Arc<str> = config.vms[at].name.as_str().into();
            if let Some(problem) = &seated.problem {
                tracing::warn!(vm = %name, "{problem}");
            }
            let member = &mut self.members[at];
            let problem = seated.problem.clone().or_else(|| member.refused.clone());
            let problem = problem.or_else(|| weighers.within[at].as_ref().map(|dir| apart(dir)));
            let full = member.threads.iter().any(|thread| without.contains(thread));
            member.problem = problem.or_else(|| full.then(too_many));
            for (thread, place) in member.threads.iter().zip(&seated.vcpus) {
                let Some((slot, saved)) = self.found.thread(thread) else { continue };
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
                    weigher: weighers.of.get(thread).cloned().unwrap_or(Weigher::Nice),
                });
            }
            member.seated = Some(seated);
            member.complaints.clear();
        }
        Some(seats)
    }

    /// Records the state of threads and cgroups before their first change. Returns the threads for
    /// which the table of thread policies has no room.
    fn note(&mut self, config: &Config, weighers: &Weighers) -> Option<Vec<Identity>> {
        let threads: Vec<Identity> =
            self.members.iter().flat_map(|member| member.threads.iter().copied()).collect();
        // This releases reservations before it restores processors, because a deadline thread
        // cannot lose processors.
        let slots = self.held.release_all(|thread| threads.contains(&thread));
        self.found.give_up(slots);
        let groups: Vec<&Cgroup> = weighers.groups.iter().collect();
        match self.found.note(clock::now(), &threads, &groups, &config.run_dir) {
            Ok(without) => Some(without),
            Err(error) => {
                let dir = config.run_dir.display();
                let why = format!(
                    "the VM is not scheduled, because the threads' former settings cannot be saved \
                     in {dir}: {error}; make room in the directory"
                );
                let found = &self.found;
                let is_new = |member: &&mut Member| {
                    member.threads.iter().any(|thread| found.thread(thread).is_none())
                };
                for member in self.members.iter_mut().filter(is_new) {
                    if member.problem.replace(why.clone()).as_ref() != Some(&why) {
                        tracing::error!("{why}");
                    }
                }
                self.look_again();
                None
            }
        }
    }

    /// Makes the next call of [`Self::look`] treat all VMs as changed.
    pub fn look_again(&mut self) {
        self.looked = false;
    }

    /// Decides how the service sets weights. If a cgroup divides time between a VM and other VMs,
    /// the cgroup's weight is used, otherwise nice values.
    fn weighers(&self) -> Weighers {
        let homes: Vec<Option<PathBuf>> =
            self.members.iter().map(|member| divide::home(&member.threads)).collect();
        let mut weighers = Weighers::default();
        let dividers = divide::divide(&homes, &divide::is_all_of);
        for (member, Divider { group, within }) in self.members.iter().zip(dividers) {
            weighers.within.push(within);
            let group = group.and_then(|path| Cgroup::at(&path).ok());
            let Some(group) = group.filter(|group| !group.is_root()) else { continue };
            let vcpus = member.threads.len();
            let all = Arc::new(GroupWeight::new(group.clone(), vcpus));
            for (at, thread) in member.threads.iter().enumerate() {
                let leaf = leaf(*thread, &group).filter(|_| vcpus > 1);
                weighers.groups.extend(leaf.clone());
                let by = Weigher::Group { all: Arc::clone(&all), at, leaf };
                weighers.of.insert(*thread, by);
            }
            weighers.groups.push(group);
        }
        weighers
    }

    pub fn has(&self, thread: &Identity) -> bool {
        self.members.iter().any(|member| member.threads.contains(thread))
    }

    /// Name of the VM to which a thread belongs or belonged, for the log.
    pub fn name(&self, thread: &Identity) -> &str {
        self.whose.get(thread).map_or("-", |at| &self.names[*at])
    }

    /// Restarts the measurement of shares, because the set of VMs has changed.
    pub fn begin_anew(&mut self) {
        self.held.begin_anew();
    }

    /// Removes a thread that has exited from its VM. After the removal, the next call of
    /// [`Self::look`] treats the VM as changed.
    pub fn forget(&mut self, thread: &Identity) {
        for member in &mut self.members {
            member.threads.retain(|other| other != thread);
        }
        self.looked = false;
    }

    pub fn complain(&mut self, thread: Identity, complaint: Complaint) {
        for (at, member) in self.members.iter_mut().enumerate() {
            if !member.threads.contains(&thread) {
                continue;
            }
            member.complaints.retain(|(other, _)| *other != thread);
            member.complaints.push((thread, complaint.clone()));
            let text = complaint::text(member);
            if text != member.logged {
                tracing::warn!(vm = self.names[at], "{}", text.as_deref().unwrap_or_default());
                member.logged = text;
            }
        }
    }

    /// Removes all complaints about the vCPU with the thread `thread`.
    pub fn content(&mut self, thread: Identity) {
        for member in &mut self.members {
            member.complaints.retain(|(other, _)| *other != thread);
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
        // A thread with a reservation may run on any processor, so each processor counts an equal
        // part of its time.
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
                labels: vm.labels.as_map().clone(),
                mode: mode.to_owned(),
                deadline_ms: std::time::Duration::from_nanos(deadline.0).as_secs_f64() * 1e3,
                weight: contract.weight.get(),
                problem: complaint::text(member).or_else(|| member.problem.clone()),
                vcpus: vcpus.chain(held).collect(),
            }
        };
        self.members.iter().zip(&config.vms).map(vm).collect()
    }
}

fn groups_of(thread: &Identity) -> String {
    std::fs::read_to_string(format!("/proc/{}/cgroup", thread.tid)).unwrap_or_default()
}

/// The cgroup below `group` that contains only the vCPU's thread, as libvirt creates such cgroups;
/// `None` if the vCPU has no cgroup of its own.
fn leaf(thread: Identity, group: &Cgroup) -> Option<Cgroup> {
    let leaf = Cgroup::dividing(thread.tid).ok()?;
    let is_below = leaf.path() != group.path() && leaf.path().starts_with(group.path());
    (is_below && leaf.holds_only(thread.tid)).then_some(leaf)
}

const fn mode(mode: Mode) -> &'static str {
    match mode {
        Mode::None => "none",
        Mode::Periodic => "periodic",
        Mode::Aperiodic => "aperiodic",
        Mode::Driver => "driver",
    }
}

fn twice(other: &str) -> String {
    format!("VM \"{other}\" has the same threads; give each VM a source that matches only this VM")
}

fn apart(within: &Path) -> String {
    format!(
        "the VM's weight counts only against VMs below {}, and other VMs are in other \
         directories; put the cgroups of all VMs into one directory, without other processes",
        within.display()
    )
}

fn too_many() -> String {
    format!(
        "no room for all vCPUs of the VM: a scheduler has at most {SLOTS}; use another scheduler"
    )
}
