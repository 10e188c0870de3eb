//! Structured logs on standard error, as text or as one JSON object per line.

use std::io::{self, IsTerminal as _};

use anyhow::{Context as _, Result};
use tracing_subscriber::filter::Targets;
use tracing_subscriber::prelude::*;

use crate::cli::LogFormat;

/// Remedy in the error about a wrong log filter.
const EXAMPLE: &str = "write a filter such as info,penstock=debug";

/// Installs the subscriber. `RUST_LOG` overrides the configured filter.
///
/// # Errors
/// Returns an error if the filter is wrong, or a subscriber is already installed.
pub fn install(format: LogFormat, configured: &str) -> Result<()> {
    let filter = match std::env::var("RUST_LOG") {
        Ok(text) if !text.is_empty() => filter("RUST_LOG", &text)?,
        _ => filter("log", configured)?,
    };
    let lines = tracing_subscriber::fmt::layer().with_writer(io::stderr);
    let lines = match format {
        LogFormat::Text => lines.with_ansi(io::stderr().is_terminal()).boxed(),
        LogFormat::Json => lines.json().flatten_event(true).boxed(),
    };
    let installed = tracing_subscriber::registry().with(lines.with_filter(filter)).try_init();
    installed.map_err(|error| anyhow::anyhow!("logs: {error}"))
}

/// Parses a filter of levels by module. `from` names the source of `text` in errors. Filters of
/// spans are refused, because Penstock has no spans.
fn filter(from: &str, text: &str) -> Result<Targets> {
    let wrong = || format!("{from}: '{text}' is not a log filter; {EXAMPLE}");
    anyhow::ensure!(!text.contains('['), wrong());
    text.parse().with_context(wrong)
}

#[cfg(test)]
mod tests {
    use tracing::Level;

    use super::*;

    #[test]
    fn a_filter_sets_levels_by_module() {
        let found = filter("log", "info,penstock=debug").unwrap();
        assert!(found.would_enable("penstock::daemon", &Level::DEBUG));
        assert!(!found.would_enable("hyper", &Level::DEBUG));
        for (text, why) in [("x=y=z", "too many '='"), ("[span]=debug", "'[span]=debug' is not")] {
            let error = format!("{:#}", filter("RUST_LOG", text).unwrap_err());
            assert!(error.contains(why) && error.contains(EXAMPLE), "{error}");
        }
    }
}
