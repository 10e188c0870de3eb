//! Live part of C2QoS Fig. 11, panels (a) and (b): the rates of VMs that bought contracts, over
//! their purchases.
//!
//! # Source
//!
//! C2QoS §VI-B, Fig. 11 (a) and (b): deviations of -2 to 3 %, and of -2 to 4 % on one I/O core.
//!
//! # Approach
//!
//! `penstock calibrate --quick` measures this machine's cost model, and the host sells contracts by
//! the model ([`super::sold`]). In (a), four VMs declared 512-byte frames; one sends them, and the
//! others send pairs of sizes around 512 bytes. In (b), 1 to 16 VMs declared and send frames of
//! different sizes. All cases are repeated with the paper's algorithms as printed.
//!
//! # Departures
//!
//! A VM's contract is also its maximum, so a rate exceeds its purchase only by the depth of the
//! limit ([`super::sold`]). In the paper, only cycles limit the VMs.
//!
//! The VMs of a case together buy about a sixth of a core, because the load generator on its one
//! core must offer more than the VMs bought.

use super::sold::{Sale, Way, model};
use crate::evidence::{Claim, Context, Outcome};
use crate::rig::fleet::Size;
use penstock_guest::bed::Bed;

/// Frame sizes of the VMs of panel (a), which declared [`DECLARED`].
const MIXED: [Size; 4] =
    [Size::Of(512), Size::Pair(448, 576), Size::Pair(256, 768), Size::Pair(64, 960)];
const DECLARED: Size = Size::Of(512);
/// Frame sizes of the VMs of panel (b), in turn.
const SIZES: [u16; 5] = [64, 128, 256, 512, 1024];
const VMS: [usize; 5] = [1, 2, 4, 8, 16];
/// Part of the core that the VMs of a case buy together.
const SHARE: f64 = 0.15;
/// Name of the algorithms, ends of the names of their claims, and lines of the worker's table.
const ALGORITHMS: [(&str, &str, &str); 2] = [
    ("penstock", "", ""),
    ("as printed", "_as_printed", "spare_cycles = \"printed\"\nreadiness = \"demotion\"\n"),
];

/// Measures both panels, and adds their claims and series to the outcome.
///
/// # Errors
/// Returns an error if the calibration or a switch fails.
pub(super) fn panels(
    context: &Context<'_>,
    bed: &Bed,
    outcome: &mut Outcome,
) -> anyhow::Result<()> {
    let secs = context.live.secs.unwrap_or(1.0);
    context.progress(0.6, "calibration");
    let model = model(bed, &["--quick"])?;
    for (name, end, worker) in ALGORITHMS {
        let sale = |sizes| Sale { model: &model, sizes, way: Way::Vm, worker, share: SHARE };
        let mixed = sale(MIXED.iter().map(|sends| [DECLARED, *sends]).collect());
        context.progress(0.8, format_args!("mixed sizes, {name}"));
        let mixed = mixed.deviations(bed, &format!("mixed{end}"), secs)?;
        let places = |all: &[f64]| (1_u32..).map(f64::from).zip(all.to_vec()).collect::<Vec<_>>();
        outcome.series(&format!("mixed sizes, {name}"), "%", places(&mixed));
        claim(outcome, &format!("deviation_pct_mixed_sizes{end}"), (3.0, end), &mixed);
        let mut all = Vec::new();
        for vms in VMS {
            context.progress(0.9, format_args!("{vms} VMs, {name}"));
            let sizes = SIZES.into_iter().cycle().take(vms);
            let sale = sale(sizes.map(|size| [size.into(), size.into()]).collect());
            let here = sale.deviations(bed, &format!("sold-{vms}{end}"), secs)?;
            outcome.series(&format!("{vms} VMs, {name}"), "%", places(&here));
            all.extend(here);
        }
        claim(outcome, &format!("deviation_pct_1_core{end}"), (4.0, end), &all);
    }
    model.describe(outcome);
    Ok(())
}

/// Adds a claim about the deviation furthest from 0. The paper's algorithms as printed have no
/// band.
fn claim(outcome: &mut Outcome, id: &str, (published, end): (f64, &str), all: &[f64]) {
    let what = "largest deviation of a rate from its purchase, after learning";
    let worst = all.iter().copied().max_by(|a, b| a.abs().total_cmp(&b.abs()));
    let claim = Claim::new(id, what, "%").published(published);
    let claim = if end.is_empty() { claim.within(-2.0, 2.0) } else { claim };
    outcome.claim(claim.measured(worst.unwrap_or(f64::NAN)));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_pairs_of_panel_a_have_the_declared_mean() {
        for sends in MIXED {
            assert!((sends.mean() - DECLARED.mean()).abs() < 1e-9, "{sends:?}");
        }
    }
}
