//! Metrics of virtual CPUs. The metrics show the values that the vCPU scheduler of `[vcpu] run_dir`
//! reports. Without a scheduler, metrics of virtual CPUs have no values.

use penstock_vcpu_host::state::{CpuState, State, VcpuState};

use super::{Labels, Metric, Source};

#[derive(Clone, Copy, Debug)]
pub(super) enum Of {
    Vcpu(fn(&VcpuState) -> f64),
    /// Waiting times of a vCPU, by percentile.
    Waits,
    Count(fn(&VcpuState) -> u64),
    Cpu(fn(&CpuState) -> f64),
    CpuCount(fn(&CpuState) -> u64),
    /// 1 if a VM does not receive the service that its contract promises, otherwise 0.
    Problem,
    /// 1 if a watchdog runs, which ends real-time slices if the scheduler fails, otherwise 0.
    Guarded,
}

pub(super) fn metrics() -> Vec<Metric> {
    let metric = |name: &str, unit, is_gauge, labels, help: &str, of| Metric {
        name: format!("penstock_vcpu{name}"),
        unit,
        is_gauge,
        labels,
        help: help.to_owned(),
        source: Source::Vcpu(of),
    };
    let gauge = |name, unit, help, value| metric(name, unit, true, "vm, vcpu", help, value);
    let count =
        |name, unit, help, value| metric(name, unit, false, "vm, vcpu", help, Of::Count(value));
    let waits = "waiting time of the vCPU since the start, by percentile; 100 is the longest";
    vec![
        gauge(
            "_share",
            "ratio",
            "vCPU's part of the run time of the processor's vCPUs since the set of VMs changed",
            Of::Vcpu(|vcpu| vcpu.share_percent / 100.0),
        ),
        gauge(
            "_entitled",
            "ratio",
            "part of the processor by the vCPU's weight while all vCPUs have work",
            Of::Vcpu(|vcpu| vcpu.entitled_percent / 100.0),
        ),
        metric("_wait", "seconds", true, "vm, vcpu, percentile", waits, Of::Waits),
        count("", "waits", "ended waits of the vCPU for its processor", |vcpu| vcpu.waits),
        count(
            "_missed",
            "waits",
            "waits that were more than 1 ms longer than the deadline",
            |vcpu| vcpu.missed,
        ),
        count("", "slices", "real-time slices that the vCPU got and used", |vcpu| vcpu.boosts),
        count("", "events", "external events for the vCPU", |vcpu| vcpu.events),
        metric(
            "_unkept",
            "",
            true,
            "vm",
            "1 while the VM is absent or lacks configured service; see `penstock vcpu show`",
            Of::Problem,
        ),
        metric(
            "_scheduler",
            "ratio",
            true,
            "cpu",
            "part of the processor's time that the scheduler itself uses",
            Of::Cpu(|cpu| cpu.own_percent / 100.0),
        ),
        metric(
            "_scheduler_skipped",
            "slots",
            false,
            "cpu",
            "slots of 0.5 ms that the scheduler missed",
            Of::CpuCount(|cpu| cpu.skipped),
        ),
        metric(
            "_scheduler_guarded",
            "",
            true,
            "",
            "1 if the scheduler has a watchdog; without a watchdog, vCPUs get no slices",
            Of::Guarded,
        ),
    ]
}

fn labels(vm: &str, vcpu: usize) -> Labels {
    vec![("vm", vm.to_owned()), ("vcpu", vcpu.to_string())]
}

/// Returns the value of a metric for each vCPU, with the vCPU's labels. The label `vcpu` is the
/// position of the vCPU in the list of its VM's vCPUs.
fn each<T>(state: &State, value: impl Fn(&VcpuState) -> T) -> Vec<(Labels, T)> {
    let vcpus = state.vms.iter().flat_map(|vm| vm.vcpus.iter().enumerate().map(move |it| (vm, it)));
    vcpus.map(|(vm, (at, vcpu))| (labels(&vm.name, at), value(vcpu))).collect()
}

/// The label is `percentile` and not `quantile`, because only summaries may have the label
/// `quantile`.
fn by_percentile(state: &State) -> Vec<(Labels, f64)> {
    let percentiles = |vcpu: &VcpuState| {
        [
            ("50", vcpu.wait_p50_us),
            ("99", vcpu.wait_p99_us),
            ("99.9", vcpu.wait_p999_us),
            ("100", vcpu.wait_max_us),
        ]
    };
    let all = each(state, percentiles).into_iter();
    all.flat_map(|(labels, waits)| {
        waits.map(|(percentile, us)| {
            let percentile = ("percentile", percentile.to_owned());
            (labels.iter().cloned().chain([percentile]).collect(), us / 1e6)
        })
    })
    .collect()
}

fn flag(on: bool) -> f64 {
    f64::from(u8::from(on))
}

pub(super) fn values(state: &State, of: Of) -> Vec<(Labels, f64)> {
    match of {
        Of::Vcpu(value) => each(state, value),
        Of::Waits => by_percentile(state),
        Of::Cpu(value) => {
            let cpus = state.cpus.iter();
            cpus.map(|cpu| (vec![("cpu", cpu.cpu.to_string())], value(cpu))).collect()
        }
        Of::Problem => {
            let vms = state.vms.iter();
            vms.map(|vm| (vec![("vm", vm.name.clone())], flag(vm.problem.is_some()))).collect()
        }
        Of::Guarded => vec![(Labels::new(), flag(state.watchdog != 0))],
        Of::Count(_) | Of::CpuCount(_) => Vec::new(),
    }
}

pub(super) fn counts(state: &State, of: Of) -> Vec<(Labels, u64)> {
    match of {
        Of::Count(value) => each(state, value),
        Of::CpuCount(value) => {
            let cpus = state.cpus.iter();
            cpus.map(|cpu| (vec![("cpu", cpu.cpu.to_string())], value(cpu))).collect()
        }
        _ => Vec::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Reading, page};
    use super::*;
    use penstock_vcpu_host::state::VmState;

    #[test]
    fn each_vcpu_has_its_share_its_waits_and_what_it_missed() {
        let vcpu = |missed| VcpuState {
            share_percent: 25.0,
            wait_p99_us: 2_500.0,
            missed,
            ..VcpuState::default()
        };
        let web = VmState {
            name: "web".to_owned(),
            vcpus: vec![vcpu(0), vcpu(7)],
            problem: Some("deadline refused".to_owned()),
            ..VmState::default()
        };
        let cpu = CpuState { cpu: 3, own_percent: 1.5, skipped: 4, ..CpuState::default() };
        let state = State { vms: vec![web], cpus: vec![cpu], watchdog: 9, ..State::default() };
        let told = page(Reading { vcpus: Some(state), ..Reading::default() }).unwrap();
        for line in [
            "penstock_vcpu_share_ratio{vm=\"web\",vcpu=\"1\"} 0.25",
            "penstock_vcpu_wait_seconds{vm=\"web\",vcpu=\"0\",percentile=\"99\"} 0.0025",
            "penstock_vcpu_missed_waits_total{vm=\"web\",vcpu=\"1\"} 7",
            "penstock_vcpu_unkept{vm=\"web\"} 1.0",
            "penstock_vcpu_scheduler_ratio{cpu=\"3\"} 0.015",
            "penstock_vcpu_scheduler_skipped_slots_total{cpu=\"3\"} 4",
            "penstock_vcpu_scheduler_guarded{} 1.0",
        ] {
            assert!(told.lines().any(|other| other == line), "{line}\nis not in\n{told}");
        }
        let none = page(Reading::default()).unwrap();
        assert!(!none.lines().any(|line| line.starts_with("penstock_vcpu_")), "{none}");
    }
}
