//! `penstock calibrate`: measures the cost model of this host and writes its file.
//!
//! | Module | Content |
//! |---|---|
//! | [`measure`] | measures the costs of frames, batches and actions, and the effect of more VMs |
//! | `rig` | starts one switch with its VMs, for one configuration |
//! | `disturbed` | tells whether other work disturbed the measurements |
//! | `offload` | sends frames with unfinished checksums or segmentation |
//! | `ways` | measures the costs of frames to and from interfaces of the kernel |

mod disturbed;
mod measure;
mod offload;
mod rig;
mod ways;

use std::process::ExitCode;

use anyhow::{Context as _, Result};
use penstock_control::config::model_text;
use penstock_guest::bed::guard;

use crate::verbs::{print, printable_lines};
pub use measure::CalibrateArgs;

/// Exit status of a calibration that failed.
const FAILED: u8 = 2;

/// Measures, writes the model and prints a summary.
///
/// # Errors
/// Returns an error if the calibration cannot start. If a started calibration fails, the function
/// prints the error and returns exit status 2.
pub fn run(args: CalibrateArgs) -> Result<ExitCode> {
    let outcome = guard::guarded("calibrate", move |guard| {
        let began = tokio::time::Instant::now();
        let calibration = measure::run(&args, guard)?;
        let text = model_text(&calibration.model);
        let summary = printable_lines(&measure::summary(&calibration, began.elapsed()));
        if args.out.as_os_str() == "-" {
            eprint!("{summary}");
            print(&text)?;
        } else {
            let out = &args.out;
            std::fs::write(out, text).with_context(|| format!("writing {}", out.display()))?;
            print(&summary)?;
        }
        Ok(ExitCode::SUCCESS)
    })?;
    Ok(outcome.unwrap_or_else(|error| {
        eprint!("penstock: calibrate: {}", printable_lines(&format!("{error:#}")));
        ExitCode::from(FAILED)
    }))
}
