//! Live experiment `contracts`: VMs get the rates that they bought, priced by this host's cost
//! model.
//!
//! # Problem
//!
//! A host sells rates and guarantees cycles. The rate that a VM gets is right only if the model's
//! costs are right, or if the daemon has learned the true costs.
//!
//! # Source
//!
//! C2QoS §III-D and §VI-B (Fig. 11): deviations of -2 to 4 % on one I/O core.
//!
//! # Approach
//!
//! `penstock calibrate` measures the model, and `penstock calibrate --verify` sells contracts by it
//! ([`verified`]). Then switches with learning sell contracts:
//!
//! - `vm`: 1 to 16 VMs send to VMs, and offer more than they bought. Their frame sizes are single
//!   sizes and IMIX. Windows are measured after [`LEARN`].
//! - `tso`: a Linux network namespace with default offloads sends one TCP stream (iperf3), after
//!   [`LEARN_TSO`].
//! - `min_pps`: a VM sends the frames per second that it bought, beside three VMs that flood with
//!   long frames, with short frames, or with many flows.
//! - `false_remedy`: in made situations, `penstock explain` names the true cause
//!   ([`super::remedies`]).
//! - `uplink`: the contracts to AF_XDP ports of `--verify`, without learning.
//!
//! # Departures
//!
//! All contracts of a case together are worth about a sixth of a core, because the load generator
//! on its one core must offer more than the VMs bought. No VM floods with kicks, and no contract
//! goes half to the uplink and half to VMs.

use std::path::Path;
use std::time::Duration;

use anyhow::Context as _;

use super::needs::needs;
use super::stage::Stage;
use crate::evidence::{Claim, Context, Outcome};
use crate::penstock::penstock;
use crate::rig::fleet::{IMIX, Offer};
use crate::rig::plan::{Bound, Plan, Vm};
use crate::rig::{Rig, Span, platform};
use penstock_guest::bed::Bed;
use penstock_guest::load::Rate;

const VMS: [u32; 5] = [1, 2, 4, 8, 16];
const SINKS: u32 = 4;
/// Frame sizes of the VMs, in turn.
const SIZES: [u16; 5] = [64, IMIX, 512, 1024, 1500];
/// Frames per second that the VMs of a case buy together.
const BOUGHT: f64 = 1e6;
/// Time in seconds in which the daemon learns before a window.
const LEARN: f64 = 5.0;
/// Time of learning before the TCP stream is measured.
const LEARN_TSO: f64 = 10.0;
/// Mbit/s of the contract of the TCP stream.
const TSO_MBPS: u32 = 1_000;
/// Frames per second of the contract beside floods.
const MIN_PPS: f64 = 200_000.0;
/// Neighbours that flood: name, frame size and number of flows.
const FLOODS: [(&str, u16, u32); 3] =
    [("bits", 1500, 1), ("packets", 64, 1), ("flows", 64, 100_000)];
/// A sender must have found its ring full in this part of its turns, or it offered too little.
const FULL: f64 = 0.5;
const STEP: Duration = Duration::from_millis(250);
const LONGEST: Duration = Duration::from_secs(60);
const SERVER: u16 = 5_201;

/// Runs the live experiment.
///
/// # Errors
/// Returns an error if a program is missing or fails, or if other work disturbs the calibration.
pub(crate) fn run(context: &Context<'_>) -> anyhow::Result<Outcome> {
    needs("iperf3", "iperf3")?;
    let bed = Bed::new(&context.live.bed, context.guard()?.clone())?;
    let secs = context.live.secs.unwrap_or(1.0);
    let mut outcome = Outcome { platform: platform(&bed, false), ..Outcome::default() };
    let model = bed.dir().join("model.toml");
    context.progress(0.0, "calibration");
    // On a machine that is not steady, the claims miss, and the notes say why.
    calibrate(&["--accept-disturbed", "--out", &model.display().to_string()])?;
    context.progress(0.4, "verification");
    calibrate(&["--verify", "--model", &model.display().to_string()])?;
    let cases = verified(&std::fs::read_to_string(&model).context("reading the model")?);
    let worst = |of: &dyn Fn(&str) -> bool| {
        let all = cases.iter().filter(|(name, _)| of(name)).map(|(_, deviation)| *deviation);
        all.max_by(|a, b| a.abs().total_cmp(&b.abs())).unwrap_or(f64::NAN)
    };
    outcome.note("verified_worst_pct", worst(&|_| true));
    outcome.note("verified_cases", u32::try_from(cases.len()).map_or(f64::NAN, f64::from));
    let mut all = Vec::new();
    for vms in VMS {
        context.progress(0.6, format_args!("{vms} VMs"));
        let here = deviations(&bed, &model, vms, secs)?;
        let points = (1_u32..).map(f64::from).zip(here.iter().copied());
        outcome.series(&format!("vm, {vms} VMs"), "%", points.collect::<Vec<_>>());
        all.extend(here);
    }
    let vm = all.into_iter().max_by(|a, b| a.abs().total_cmp(&b.abs())).unwrap_or(f64::NAN);
    deviation(&mut outcome, "vm", "VM to VM", vm, 2.0);
    let uplink = worst(&|name| name.contains(" to xdp"));
    deviation(&mut outcome, "uplink", "to an AF_XDP uplink, without learning", uplink, 3.0);
    context.progress(0.85, "large segments");
    let tso = segments(&bed, &model, 4.0 * secs)?;
    deviation(&mut outcome, "tso", "large segments (TSO), after 10 s of learning", tso, 3.0);
    let mut least = f64::INFINITY;
    for (name, size, flows) in FLOODS {
        context.progress(0.9, format_args!("beside a flood of {name}"));
        let kept = kept(&bed, &model, (name, size, flows), secs)?;
        outcome.note(&format!("min_pps_kept_pct_{name}"), kept);
        least = least.min(kept);
    }
    let what = "part of `min_pps` that a VM keeps beside floods";
    outcome.claim(Claim::new("min_pps_kept_pct", what, "%").at_least(99.0).measured(least));
    context.progress(0.95, "made situations");
    let wrong = super::remedies::wrong(&bed, &model, &mut outcome)?;
    outcome.claim(false_remedy(wrong));
    Ok(outcome)
}

/// Returns the claim about made situations, of which `wrong` are explained wrongly.
pub(crate) fn false_remedy(wrong: u32) -> Claim {
    let what = "made situations in which the first cause of `penstock explain` is not the true one";
    Claim::new("false_remedy", what, "").at_most(0.0).measured(f64::from(wrong))
}

fn deviation(outcome: &mut Outcome, id: &str, what: &str, measured: f64, most: f64) {
    let what = format!("largest deviation of the delivered rate from the purchase: {what}");
    let claim = Claim::new(&format!("contract_deviation_pct_{id}"), what, "%");
    outcome.claim(claim.within(-most, most).measured(measured));
}

/// Runs `penstock calibrate`. A model that does not hold is no error: the claims say so.
fn calibrate(args: &[&str]) -> anyhow::Result<()> {
    let status = penstock()?.arg("calibrate").args(args).status().context("penstock calibrate")?;
    anyhow::ensure!(status.code().is_some_and(|code| code < 2), "penstock calibrate: {status}");
    Ok(())
}

/// Returns the name and the deviation in per cent of each contract in the tables `[[verified]]` of
/// a model's text.
fn verified(model: &str) -> Vec<(String, f64)> {
    let tables = model.split("[[verified]]\n").skip(1);
    let of = |table: &str| {
        let value = |key: &str| {
            let line = table.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix(" = "));
            line.map(|value| value.trim_matches('"').to_owned())
        };
        let number = |key: &str| value(key)?.parse::<f64>().ok();
        Some((value("name")?, 100.0 * (number("delivered")? / number("bought")? - 1.0)))
    };
    tables.filter_map(of).collect()
}

fn plan(model: &Path, vms: Vec<Vm>) -> Plan {
    let file = model.display();
    let worker = format!("\n[model]\nfile = \"{file}\"\nany_host = true\n");
    Plan { worker, ..Plan::new("hbs", vms) }
}

fn name(vm: u32) -> String {
    format!("vm{vm}")
}

/// Returns a VM with a contract of `pps` frames per second.
fn buyer(name: String, to: &str, policy: &str, (pps, size): (f64, u16)) -> Vm {
    let size = if size == IMIX { "imix".to_owned() } else { size.to_string() };
    let more = format!(
        "ingress_policy = \"{policy}\"\n\
         contract = {{ rate = \"{pps:.0}pps\", size = \"{size}\", uplink = 0 }}\n"
    );
    Vm { more, ..Vm::sender(name, to, Bound::default()) }
}

/// Returns the deviation of each VM's rate from its purchase, in per cent.
fn deviations(bed: &Bed, model: &Path, vms: u32, secs: f64) -> anyhow::Result<Vec<f64>> {
    let pps = BOUGHT / f64::from(vms);
    let size = |vm: u32| SIZES[vm as usize % SIZES.len()];
    let sender =
        |vm| buyer(name(vm), &format!("s{}", vm % SINKS), "cycles-strict", (pps, size(vm)));
    let mut all: Vec<Vm> = (0..vms).map(sender).collect();
    all.extend((0..SINKS.min(vms)).map(|sink| Vm::sink(&format!("s{sink}"))));
    let mut rig = Rig::ours(bed, &format!("contracts-{vms}"), &plan(model, all))?;
    let offer = |vm| (name(vm), Offer { size: size(vm), flows: 1, rate: Rate::Max });
    let offers: Vec<(String, Offer)> = (0..vms).map(offer).collect();
    let window = rig.awake(|rig| {
        rig.once(bed, &offers, Span { warm: LEARN, secs: 0.1, parts: 1 })?;
        rig.window(bed, &offers, secs)
    })?;
    // A paused daemon cannot exit.
    rig.switch.resume()?;
    let of = |vm| {
        let sender = window.sender(&name(vm))?;
        anyhow::ensure!(
            sender.full >= FULL,
            "{}: the load generator offered less than the contract",
            sender.name
        );
        Ok(100.0 * (sender.pps / pps - 1.0))
    };
    (0..vms).map(of).collect()
}

/// Returns the deviation of a TCP stream with large segments from its VM's contract, in per cent.
fn segments(bed: &Bed, model: &Path, secs: f64) -> anyhow::Result<f64> {
    let more = format!(
        "ingress_policy = \"cycles-strict\"\n\
         contract = {{ rate = \"{TSO_MBPS}M\", size = 1518, uplink = 0 }}\n"
    );
    let vm = Vm { more, to: Some("net".to_owned()), name: "vm".to_owned(), ..Vm::default() };
    let net = Vm { answers: true, ..Vm::sink("net") };
    let plan = Plan { offloads: true, listens: false, ..plan(model, vec![vm, net]) };
    let mut stage = Stage::start(bed, "contracts-tso", &plan)?;
    let (port, to) = (SERVER.to_string(), Plan::ip(1).to_string());
    stage.start_program(bed, "net", "iperf3", &["-s", "-p", &port])?;
    stage.await_tcp("vm", 1, SERVER)?;
    let length = format!("{:.0}", (LEARN_TSO + secs + 1.0).ceil());
    let words = ["-c", &to, "-p", &port, "-t", &length];
    let program = stage.start_program(bed, "vm", "iperf3", &words)?;
    stage.watch(LEARN_TSO, STEP)?;
    let readings = stage.watch(secs, STEP)?;
    stage.await_program(program, LONGEST)?;
    let [first, .., last] = &readings[..] else { anyhow::bail!("{secs} s are too few") };
    Ok(100.0 * (last.bps(first, "vm") / (f64::from(TSO_MBPS) * 1e6) - 1.0))
}

/// Returns the part of its purchased frames that a VM delivers beside three VMs that flood, in per
/// cent.
fn kept(
    bed: &Bed,
    model: &Path,
    (flood, size, flows): (&str, u16, u32),
    secs: f64,
) -> anyhow::Result<f64> {
    let mut vms = vec![buyer("victim".to_owned(), "s1", "cycles-minmax", (MIN_PPS, 64))];
    vms.extend((0..3).map(|vm| buyer(name(vm), "s0", "cycles-minmax", (10_000.0, 64))));
    vms.extend([Vm::sink("s0"), Vm::sink("s1")]);
    let mut rig = Rig::ours(bed, &format!("contracts-{flood}"), &plan(model, vms))?;
    let mut offers: Vec<(String, Offer)> =
        (0..3).map(|vm| (name(vm), Offer { size, flows, rate: Rate::Max })).collect();
    let paced = Offer { size: 64, flows: 1, rate: Rate::Frames(MIN_PPS) };
    offers.push(("victim".to_owned(), paced));
    let window = rig.awake(|rig| {
        rig.once(bed, &offers, Span { warm: 1.0, secs: 0.1, parts: 1 })?;
        rig.window(bed, &offers, secs)
    })?;
    rig.switch.resume()?;
    Ok(100.0 * window.sender("victim")?.pps / MIN_PPS)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_result_of_a_verification_is_read_from_the_model() {
        let text = "[verification]\ndate = \"x\"\n\n[[verified]]\nname = \"64 bytes to xdp\"\n\
                    bought = 1000.0\ndelivered = 980.0\nband = 0.03\n";
        let cases = verified(text);
        assert_eq!(cases.len(), 1);
        assert_eq!(cases[0].0, "64 bytes to xdp");
        assert!((cases[0].1 + 2.0).abs() < 1e-9);
    }

    #[test]
    fn a_vm_buys_frames_of_its_size() {
        let vm = buyer(name(0), "s0", "cycles-strict", (250_000.0, IMIX));
        let text = plan(Path::new("/m"), vec![vm, Vm::sink("s0")]);
        let text = text.configuration(Path::new("/d"), (1, 0));
        assert!(text.contains("rate = \"250000pps\", size = \"imix\""), "{text}");
        assert!(text.contains("[model]\nfile = \"/m\""), "{text}");
    }
}
