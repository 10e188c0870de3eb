//! `penstock calibrate`: measures the cost model of this host and writes its file.
//!
//! | Module | Content |
//! |---|---|
//! | [`measure`] | measures the costs of frames, batches and actions, and the effect of more VMs |
//! | `rig` | starts one switch with its VMs, for one configuration |
//! | `disturbed` | tells whether other work disturbed the measurements |
//! | `offload` | sends frames with unfinished checksums or segmentation |
//! | `ways` | measures the costs of frames to and from interfaces of the kernel |
//! | `verify` | sells contracts by the model, and measures what they get |

mod disturbed;
mod measure;
mod offload;
mod rig;
mod verify;
mod ways;

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context as _, Result};
use penstock_control::config::{load_model, model_text};
use penstock_guest::bed::{Bed, guard};
use penstock_qos::cost_model::CostModel;

use crate::verbs::{print, printable_lines};
pub use measure::CalibrateArgs;

/// Exit status of a calibration that failed.
const FAILED: u8 = 2;

/// Exit status of a model that does not hold.
const WRONG: u8 = 1;

/// Measures, verifies and writes the model as asked, and prints a summary.
///
/// # Errors
/// Returns an error if the calibration cannot start. If a started calibration fails, the function
/// prints the error and returns exit status 2. The exit status is 1 if a model does not hold.
pub fn run(args: CalibrateArgs) -> Result<ExitCode> {
    let outcome = guard::guarded("calibrate", move |guard| {
        let bed = Bed::new(&args.bed, guard.clone())?;
        let began = tokio::time::Instant::now();
        let out = args.model.as_ref().or(args.out.as_ref());
        let model = match &args.model {
            Some(file) => load_model(file)?,
            None => {
                let calibration = measure::run(&args, &bed)?;
                let summary = measure::summary(&calibration, began.elapsed());
                // A verification that fails must not lose the model.
                write(out, &calibration.model, &summary, !args.verify)?;
                calibration.model
            }
        };
        if !args.verify {
            return Ok(ExitCode::SUCCESS);
        }
        let (verified, notes) = verify::run(&args, &model, &bed)?;
        let (summary, holds) = (verify::summary(&verified, &notes), verified.holds());
        let model = model.with_verification(verified).context("the verification failed")?;
        write(out, &model, &summary, true)?;
        Ok(if holds { ExitCode::SUCCESS } else { ExitCode::from(WRONG) })
    })?;
    Ok(outcome.unwrap_or_else(|error| {
        eprint!("penstock: calibrate: {}", printable_lines(&format!("{error:#}")));
        ExitCode::from(FAILED)
    }))
}

/// Writes the model to the file `out`, and prints the summary. Without a file or with `-`, the
/// model goes to standard output if it is the last one, and the summary to standard error.
fn write(out: Option<&PathBuf>, model: &CostModel, summary: &str, is_last: bool) -> Result<()> {
    let (text, summary) = (model_text(model), printable_lines(summary));
    let Some(out) = out.filter(|out| out.as_os_str() != "-") else {
        eprint!("{summary}");
        return if is_last { print(&text) } else { Ok(()) };
    };
    std::fs::write(out, text).with_context(|| format!("writing {}", out.display()))?;
    print(&summary)
}
