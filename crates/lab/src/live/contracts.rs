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
//! ([`verify`]). Then switches with learning sell contracts:
//!
//! - `vm`: 1 to 16 VMs send to VMs, and offer more than they bought ([`super::sold`]). Their frame
//!   sizes are single sizes and IMIX.
//! - `uplink`: 4 VMs send all frames, or every second frame, to an AF_XDP port. The record also has
//!   the contracts to AF_XDP ports of `--verify`, which are sold without learning.
//! - `tso`: a Linux network namespace with default offloads sends one TCP stream (iperf3) with
//!   Linux's default congestion control, CUBIC, after [`LEARN_TSO`]. BBR would offer less than the
//!   contract at times: every 10 s it waits for a round trip with an empty queue.
//! - `min_pps`: a VM sends the frames per second that it bought, beside three VMs that flood with
//!   long frames, with short frames, with many flows, or with notifications: short frames to a
//!   receiver that wants interrupts, and a notification of the switch in each turn of the load.
//! - `false_remedy`: in made situations, `penstock explain` names the true cause
//!   ([`super::remedies`]).
//!
//! # Departures
//!
//! In `vm`, `uplink` and `tso`, a contract's maximum is its minimum ([`super::sold`]), so these
//! claims show missing cycles, and no excess. The verification has no maximum and shows both.
//!
//! All contracts of a case together are worth about a sixth of a core, because the load generator
//! on its one core must offer more than the VMs bought.

use std::time::Duration;

use penstock_control::config::load_model;

use super::limits::CONGESTION;
use super::needs::needs;
use super::sold::{Model, Sale, Way, buyer, calibrate, model, name, plan};
use super::stage::Stage;
use crate::evidence::{Claim, Context, Outcome};
use crate::rig::fleet::{Offer, Size};
use crate::rig::plan::{Plan, Vm};
use crate::rig::{Rig, Span, platform};
use penstock_guest::bed::Bed;
use penstock_guest::load::Rate;

const VMS: [usize; 5] = [1, 2, 4, 8, 16];
/// Frame sizes of the VMs, in turn.
const SIZES: [Size; 5] = [Size::Of(64), Size::Imix, Size::Of(512), Size::Of(1024), Size::Of(1500)];
/// Part of the core that the VMs of a case buy together.
const SHARE: f64 = 0.15;
/// With shorter windows, in seconds, the model is not verified.
const FULL_SECS: f64 = 1.0;
/// Time of learning before the TCP stream is measured.
const LEARN_TSO: f64 = 10.0;
/// Mbit/s of the contract of the TCP stream.
const TSO_MBPS: u32 = 1_000;
/// Frames per second of the contract beside floods.
const MIN_PPS: f64 = 200_000.0;
/// Neighbours that flood: name, frame size and number of flows. [`KICKS`] also floods with
/// notifications.
const FLOODS: [(&str, u16, u32); 4] =
    [("bits", 1500, 1), ("packets", 64, 1), ("flows", 64, 100_000), (KICKS, 64, 1)];
const KICKS: &str = "kicks";
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
    context.progress(0.0, "calibration");
    // The daemon learns what a quick calibration misses.
    let model = model(&bed, &["--quick"])?;
    if secs >= FULL_SECS {
        context.progress(0.4, "verification");
        verify(&model, &mut outcome)?;
    }
    let vm = VMS.map(|vms| (vms, Way::Vm));
    sales(context, (&bed, &model), ("vm", "VM to VM", 2.0), &vm, &mut outcome)?;
    let uplink = [(4, Way::Uplink), (4, Way::Half)];
    let what = "to an AF_XDP uplink, all and half of the frames";
    sales(context, (&bed, &model), ("uplink", what, 3.0), &uplink, &mut outcome)?;
    context.progress(0.85, format_args!("large segments{}", model.waits_for()));
    let tso = model.steadily(&bed, || segments(&bed, &model, 4.0 * secs))?;
    deviation(&mut outcome, "tso", "large segments (TSO), after 10 s of learning", tso, 3.0);
    let mut least = f64::INFINITY;
    for (name, size, flows) in FLOODS {
        context.progress(0.9, format_args!("beside a flood of {name}{}", model.waits_for()));
        let kept = model.steadily(&bed, || kept(&bed, &model, (name, size, flows), secs))?;
        outcome.note(&format!("min_pps_kept_pct_{name}"), kept);
        least = least.min(kept);
    }
    let what = "part of `min_pps` that a VM keeps beside floods";
    outcome.claim(Claim::new("min_pps_kept_pct", what, "%").at_least(99.0).measured(least));
    context.progress(0.95, "made situations");
    let wrong = super::remedies::wrong(&bed, &model, &mut outcome)?;
    outcome.claim(false_remedy(wrong));
    model.describe(&mut outcome);
    Ok(outcome)
}

/// Sells contracts in all `cases` of VMs and ways, and adds a claim about the largest deviation of
/// all rates from their purchases. `claim` has the name and the text of the claim, and the largest
/// accepted deviation in per cent.
fn sales(
    context: &Context<'_>,
    (bed, model): (&Bed, &Model),
    (id, what, most): (&str, &str, f64),
    cases: &[(usize, Way)],
    outcome: &mut Outcome,
) -> anyhow::Result<()> {
    let secs = context.live.secs.unwrap_or(1.0);
    let mut all = Vec::new();
    for (vms, way) in cases {
        let case = format!("{vms} VMs, {way:?}").to_lowercase();
        context.progress(0.6, format_args!("{case}{}", model.waits_for()));
        let sizes = SIZES.into_iter().cycle().take(*vms).map(|size| [size, size]).collect();
        let sale = Sale { model, sizes, way: *way, worker: "", share: SHARE };
        let here = sale.deviations(bed, &format!("contracts-{id}-{vms}-{way:?}"), secs)?;
        let points = (1_u32..).map(f64::from).zip(here.iter().copied());
        outcome.series(&format!("{id}, {case}"), "%", points.collect::<Vec<_>>());
        all.extend(here);
    }
    let worst = all.into_iter().max_by(|a, b| a.abs().total_cmp(&b.abs())).unwrap_or(f64::NAN);
    deviation(outcome, id, what, worst, most);
    Ok(())
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

/// Verifies the model, and adds the largest deviations of the verified contracts to the outcome.
fn verify(model: &Model, outcome: &mut Outcome) -> anyhow::Result<()> {
    calibrate(&["--verify", "--model", &model.file.display().to_string()])?;
    let model = load_model(&model.file)?;
    let cases = || model.parts().verified.iter().flat_map(|verification| &verification.cases);
    let worst = |part: &str| {
        let all = cases().filter(|case| case.name.contains(part));
        let all = all.map(|case| 100.0 * case.deviation());
        all.max_by(|a, b| a.abs().total_cmp(&b.abs())).unwrap_or(f64::NAN)
    };
    outcome.note("verified_worst_pct", worst(""));
    outcome.note("verified_worst_uplink_pct", worst(" to xdp"));
    outcome.note("verified_cases", cases().count());
    outcome.note("verified_cases_out_of_band", cases().filter(|case| !case.holds()).count());
    Ok(())
}

/// Returns the deviation of a TCP stream with large segments from its VM's contract, in per cent.
fn segments(bed: &Bed, model: &Model, secs: f64) -> anyhow::Result<f64> {
    let more = format!(
        "ingress_policy = \"cycles-strict\"\n\
         contract = {{ min_rate = \"{TSO_MBPS}M\", max_rate = \"{TSO_MBPS}M\", size = 1518, \
         uplink = 0 }}\n"
    );
    let vm = Vm { more, to: Some("net".to_owned()), name: "vm".to_owned(), ..Vm::default() };
    let net = Vm { answers: true, ..Vm::sink("net") };
    let plan = Plan { offloads: true, ..plan(&model.file, vec![vm, net]) };
    let mut stage = Stage::start(bed, "contracts-tso", &plan)?;
    let (port, to) = (SERVER.to_string(), Plan::ip(1).to_string());
    stage.start_program(bed, "net", "iperf3", &["-s", "-p", &port])?;
    stage.await_tcp("vm", 1, SERVER)?;
    let length = format!("{:.0}", (LEARN_TSO + secs + 1.0).ceil());
    let words = ["-c", &to, "-p", &port, "-t", &length, "-C", CONGESTION];
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
    model: &Model,
    (flood, size, flows): (&str, u16, u32),
    secs: f64,
) -> anyhow::Result<f64> {
    let small = Size::Of(64);
    let mut vms = vec![buyer("victim".to_owned(), "s1", "cycles-minmax", (MIN_PPS, small, 0))];
    let kicks = flood == KICKS;
    let flooder = |vm| buyer(name(vm), "s0", "cycles-minmax", (10_000.0, small, 0));
    vms.extend((0..3).map(|vm| Vm { kicks, ..flooder(vm) }));
    vms.extend([Vm { interrupts: kicks, ..Vm::sink("s0") }, Vm::sink("s1")]);
    let mut rig = Rig::ours(bed, &format!("contracts-{flood}"), &plan(&model.file, vms))?;
    let mut offers: Vec<(String, Offer)> =
        (0..3).map(|vm| (name(vm), Offer { size: size.into(), flows, rate: Rate::Max })).collect();
    let paced = Offer { size: small, flows: 1, rate: Rate::Frames(MIN_PPS) };
    offers.push(("victim".to_owned(), paced));
    let window = rig.awake(|rig| {
        rig.once(bed, &offers, Span { warm: 1.0, secs: 0.1, parts: 1 })?;
        rig.window(bed, &offers, secs)
    })?;
    rig.switch.resume()?;
    Ok(100.0 * window.sender("victim")?.pps / MIN_PPS)
}
