//! `penstock calibrate`: measures the cost model of this host and writes its file.

use std::process::ExitCode;

use anyhow::{Context as _, Result};
use penstock_control::config::model_text;
use penstock_lab::bench::calibrate::{self, CalibrateArgs};

use crate::bench::guarded;
use crate::verbs::{print, printable_lines};

/// Measures, writes the model, and says what it found.
///
/// # Errors
/// It cannot be started. Its own errors are printed, with exit status 2.
pub fn run(args: CalibrateArgs) -> Result<ExitCode> {
    guarded("calibrate", move |guard| {
        let began = tokio::time::Instant::now();
        let calibration = calibrate::run(&args, guard)?;
        let text = model_text(&calibration.model);
        let summary = printable_lines(&calibrate::summary(&calibration, began.elapsed()));
        if args.out.as_os_str() == "-" {
            eprint!("{summary}");
            print(&text)?;
        } else {
            let out = &args.out;
            std::fs::write(out, text).with_context(|| format!("writing {}", out.display()))?;
            print(&summary)?;
        }
        Ok(ExitCode::SUCCESS)
    })
}
