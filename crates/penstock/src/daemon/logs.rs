//! Structured logs on standard error, as text or as one JSON object a line.

use std::io::{self, IsTerminal as _};

use anyhow::{Context as _, Result};
use tracing_subscriber::EnvFilter;

use crate::cli::LogFormat;

/// The remedy for a wrong filter.
const EXAMPLE: &str = "write one such as info,penstock=debug";

/// Installs the subscriber. `RUST_LOG` overrides the configured filter.
///
/// # Errors
/// The filter is wrong, or a subscriber is already installed.
pub fn install(format: LogFormat, configured: &str) -> Result<()> {
    let filter = match std::env::var("RUST_LOG") {
        Ok(text) if !text.is_empty() => EnvFilter::try_new(&text)
            .with_context(|| format!("RUST_LOG: '{text}' is not a log filter; {EXAMPLE}"))?,
        _ => EnvFilter::try_new(configured)
            .with_context(|| format!("log: '{configured}' is not a log filter; {EXAMPLE}"))?,
    };
    let builder = tracing_subscriber::fmt().with_env_filter(filter).with_writer(io::stderr);
    let installed = match format {
        LogFormat::Text => builder.with_ansi(io::stderr().is_terminal()).try_init(),
        LogFormat::Json => builder.json().flatten_event(true).try_init(),
    };
    installed.map_err(|error| anyhow::anyhow!("logs: {error}"))
}
