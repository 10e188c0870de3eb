//! Reads TOML files for the host's configuration and for the controller's files.
//!
//! # Problem
//!
//! A file with a mistake must have no effect, not even a partial one. Its author needs all mistakes
//! at once, each with its line, its object, the limit and a remedy. serde stops at the first
//! mistake.
//!
//! # Approach
//!
//! [`read()`] checks the syntax. [`section`] and [`list`] then read each table by itself and add
//! its mistakes to the [`Report`]. The caller checks references between objects and adds their
//! mistakes. If a file has any mistake, the result is [`ConfigErrors`] and no value.
//!
//! Leaf values ([`text_value!`]) check themselves when they are read. Their error text is
//! `problem; remedy`. [`schema`] has the parts that the JSON schemas of all files share.
#![forbid(unsafe_code)]
#![allow(missing_docs, reason = "not a published reference; comments say what names do not")]
// A user's file must not end the process, so only tests may panic.
#![cfg_attr(
    not(test),
    warn(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::unimplemented)
)]

mod error;
mod explain;
mod file;
mod object;
mod rate;
mod read;
mod report;
pub mod schema;
mod source;
pub mod text;

pub use error::{ConfigError, ConfigErrors};
pub use file::{read_file, save};
pub use object::{Object, list, section, unknown_sections};
pub use rate::{BitsPerSecond, CyclesPerSecond, PacketsPerSecond};
pub use read::{FILE_BYTES_MAX, read};
pub use report::{Hint, Report};

#[doc(hidden)]
pub use {schemars, serde};
