//! Converts the complaints of scheduling threads about vCPUs to text for operators.

use std::path::PathBuf;

use penstock_vcpu::Mode;

use super::roster::Member;
use crate::budget::{missing, needed_ppm, remedy};
use crate::cgroup::Cgroup;
use crate::lease::Identity;

/// Reason why a vCPU does not get the time that its VM requested.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Complaint {
    /// Message of a scheduling thread, which the service shows unchanged.
    Told(String),
    /// The vCPU's cgroup has no real-time budget.
    NoBudget,
}

/// Text of the current complaint about a VM's vCPUs; `None` without a complaint. Each call reads
/// cgroups and budgets, because libvirt moves threads and other programs write budgets.
pub(super) fn text(member: &Member) -> Option<String> {
    let complaints = member.complaints.iter();
    let mut there = complaints.filter(|(thread, _)| member.threads.contains(thread));
    let (thread, complaint) = there.next_back()?;
    match complaint {
        Complaint::Told(why) => Some(why.clone()),
        Complaint::NoBudget => Some(no_budget(member, *thread)),
    }
}

fn no_budget(member: &Member, thread: Identity) -> String {
    let again = "the scheduler tries again at least once a minute";
    let group = Cgroup::of_thread(thread.tid).map(|group| group.path().to_owned());
    let missing = missing(&needs(member));
    let group = group.map_or_else(|error| error.to_string(), |path| path.display().to_string());
    if missing.writes.is_empty() {
        return format!(
            "the kernel refused a real-time slice, but the vCPU's cgroup {group} has a budget \
             now; {again}"
        );
    }
    format!(
        "no real-time slices: the vCPU's cgroup {group} has cpu.rt_runtime_us = 0, but needs \
         twice the time of the vCPU's slices; {}; {again}",
        remedy(&missing)
    )
}

/// Real-time budgets that the VM's vCPUs need in their cgroups, in millionths of a processor. The
/// kernel grants a cgroup's whole budget on each processor. If a cgroup has vCPUs on several
/// processors, the budget must suffice for the processor with the most vCPUs of the cgroup.
fn needs(member: &Member) -> Vec<(PathBuf, u64)> {
    let Some(seated) = member.seated.as_ref().filter(|it| it.contract.mode != Mode::None) else {
        return Vec::new();
    };
    let mut homes: Vec<(PathBuf, u32)> = Vec::new();
    for (thread, place) in member.threads.iter().zip(&seated.vcpus) {
        let group = Cgroup::of_thread(thread.tid);
        homes.extend(group.ok().map(|group| (group.path().to_owned(), place.cpu)));
    }
    homes.sort();
    let mut needs: Vec<(PathBuf, u64)> = Vec::new();
    for together in homes.chunk_by(|a, b| a == b) {
        let count = u64::try_from(together.len()).unwrap_or(1);
        let (path, ppm) = (&together[0].0, count * needed_ppm(seated.contract.deadline));
        match needs.iter_mut().find(|(other, _)| other == path) {
            Some((_, most)) => *most = ppm.max(*most),
            None => needs.push((path.clone(), ppm)),
        }
    }
    needs
}
