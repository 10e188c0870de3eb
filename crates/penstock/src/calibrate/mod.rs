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

use std::fs::OpenOptions;
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};
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
    if let Some(out) = args.model.as_ref().or(args.out.as_ref()).filter(|out| is_file(out)) {
        // A calibration takes minutes, and its model would be lost.
        can_write(out).with_context(|| format!("writing {}", out.display()))?;
    }
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

/// Whether `out` is the path of a file, and not `-` for standard output.
fn is_file(out: &Path) -> bool {
    out.as_os_str() != "-"
}

/// Checks that this process may write the file `out`. The function changes no file.
fn can_write(out: &Path) -> io::Result<()> {
    // The reader of a pipe would take the check for the end of the model.
    if std::fs::metadata(out).is_ok_and(|it| !it.is_file() && !it.is_dir()) {
        return Ok(());
    }
    match OpenOptions::new().append(true).open(out) {
        Err(error) if error.kind() == ErrorKind::NotFound => {
            OpenOptions::new().append(true).create_new(true).open(out)?;
            std::fs::remove_file(out)
        }
        opened => opened.map(drop),
    }
}

/// Writes the model to the file `out`, and prints the summary. Without a file or with `-`, the
/// model goes to standard output if it is the last one, and the summary to standard error.
fn write(out: Option<&PathBuf>, model: &CostModel, summary: &str, is_last: bool) -> Result<()> {
    let (text, summary) = (model_text(model), printable_lines(summary));
    let Some(out) = out.filter(|out| is_file(out)) else {
        eprint!("{summary}");
        return if is_last { print(&text) } else { Ok(()) };
    };
    std::fs::write(out, text).with_context(|| format!("writing {}", out.display()))?;
    print(&summary)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_that_cannot_be_written_is_found_before_the_calibration() {
        let dir = penstock_testing::temp_dir();
        let file = dir.join("model.toml");
        can_write(&file).unwrap();
        assert!(!file.exists(), "the check leaves no file");
        std::fs::write(&file, "old").unwrap();
        can_write(&file).unwrap();
        assert_eq!(std::fs::read_to_string(&file).unwrap(), "old");
        assert!(can_write(&dir).is_err(), "a directory is no file");
        assert!(can_write(&dir.join("none/model.toml")).is_err());
    }
}
