//! This crate reads TOML files: the host's configuration and the controller's files.
//!
//! # Problem
//!
//! A file with a mistake must have no effect, not even a partial effect. The file's author needs
//! all mistakes at once, each with line, object, limit and remedy. The library serde stops at the
//! first mistake.
//!
//! # Approach
//!
//! The function [`read()`] checks the syntax of a file. The functions [`section`] and [`list`] read
//! the tables of a file and add their mistakes to the [`Report`]. The caller checks references
//! between objects and adds wrong references to the report. If a file has any mistake, the result
//! is [`ConfigErrors`] and no value.
//!
//! Reading a leaf value ([`text_value!`]) also checks the value. The error text of an invalid leaf
//! value consists of the problem, `; ` and the remedy. The module [`schema`] contains the parts
//! that the JSON schemas of all files share.
#![forbid(unsafe_code)]
#![allow(missing_docs, reason = "the API is not published, so comments are optional")]
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
pub use object::{Object, list, section, single, unknown_sections};
pub use rate::{BitsPerSecond, CyclesPerSecond, PacketsPerSecond};
pub use read::{FILE_BYTES_MAX, read};
pub use report::{Hint, Report};

#[doc(hidden)]
pub use {schemars, serde};
