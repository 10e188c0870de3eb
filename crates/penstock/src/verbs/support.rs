//! `penstock support-bundle` collects what a person needs who looks for a fault: configuration,
//! state, counters, logs and versions.
//!
//! # Approach
//!
//! The bundle has the output of the commands that an operator would run, so that a reader needs no
//! other tool. Each command is a process of its own: if a part of Penstock does not answer, the
//! other parts are still in the bundle, and `missing.txt` says what failed.
//!
//! # Secrets
//!
//! Penstock's configuration names files with keys and passwords, and the bundle contains no such
//! file. If a part has the text of a secret by mistake, asterisks replace the text ([`masks`]).
//!
//! # Limits
//!
//! Root makes the bundle from files and processes of other users. [`collect`] limits the time, the
//! memory and the files that the bundle uses.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::time::Duration;

use anyhow::{Context as _, Result};
use flate2::Compression;
use flate2::write::GzEncoder;

use super::print;
use crate::unix_time::unix_s;
use collect::Links;
use masks::Masks;
use state_dir::StateDir;

mod collect;
mod masks;
mod state_dir;

/// Largest part of a bundle in bytes. The end of a longer part is kept.
const PART_MAX: usize = 32 << 20;
/// Time after which a process is killed.
const PROCESS_MAX: Duration = Duration::from_secs(10);

/// `penstock support-bundle`.
#[derive(Debug, Clone, clap::Args)]
pub struct SupportArgs {
    /// File for the bundle. Default: penstock-support-HOST-TIME.tar.gz in this directory
    #[arg(long, value_name = "FILE")]
    pub out: Option<PathBuf>,
    /// Directories with configuration files
    #[arg(
        long = "config-dir",
        value_name = "DIR",
        default_values = ["/etc/penstock", "/etc/penstock-controller"]
    )]
    pub config_dirs: Vec<PathBuf>,
    /// Unix socket of a controller on this machine
    #[arg(long, value_name = "PATH", default_value = "/run/penstock-controller/controller.sock")]
    pub controller_socket: PathBuf,
    /// Length of the log to collect, in systemd's notation
    #[arg(long, value_name = "TIME", default_value = "24h")]
    pub since: String,
}

/// Parts of the bundle that are the output of a `penstock` command: file and arguments.
const HOST: [(&str, &[&str]); 8] = [
    ("state/ports.json", &["port", "list", "--json"]),
    ("state/tenants.json", &["tenant", "list", "--json"]),
    ("state/rules.json", &["flow", "list", "--json"]),
    ("state/addresses.json", &["fdb", "list", "--json"]),
    ("counters/stats.json", &["stats", "--json"]),
    ("counters/check.txt", &["stats", "--check"]),
    ("counters/drops.txt", &["stats", "--drops"]),
    ("counters/delays.txt", &["stats", "--delays"]),
];

const CONTROLLER: [(&str, &str); 5] = [
    ("controller/status.json", "status"),
    ("controller/topology.json", "topology"),
    ("controller/tenants.json", "tenants"),
    ("controller/bindings.json", "bindings"),
    ("controller/events.json", "events"),
];

/// Files of the machine that say what it is.
const MACHINE: [(&str, &str); 7] = [
    ("machine/os-release", "/etc/os-release"),
    ("machine/kernel", "/proc/version"),
    ("machine/cmdline", "/proc/cmdline"),
    ("machine/cpuinfo", "/proc/cpuinfo"),
    ("machine/meminfo", "/proc/meminfo"),
    ("machine/interrupts", "/proc/interrupts"),
    ("machine/schedstat", "/proc/schedstat"),
];

/// Runs `support-bundle`.
///
/// # Errors
/// Returns an error if the bundle cannot be written. A part that cannot be collected is no error.
pub fn run(args: &SupportArgs, socket: &Path) -> Result<ExitCode> {
    let out = args.out.clone().unwrap_or_else(|| {
        let host = fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
        PathBuf::from(format!("penstock-support-{}-{}.tar.gz", host.trim(), unix_s()))
    });
    let at = || format!("support bundle {}", out.display());
    // Only the caller may read the state of the host.
    let file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&out);
    let file = file.with_context(|| format!("{}: cannot be made; choose another file", at()))?;
    let mut bundle = Bundle::new(file);
    let added = bundle.add_all(args, socket).and_then(|()| bundle.finish());
    added.with_context(at)?;
    print(&format!("{}\n", out.display()))?;
    Ok(ExitCode::SUCCESS)
}

struct Bundle {
    archive: tar::Builder<GzEncoder<File>>,
    masks: Masks,
    /// Parts that could not be collected, with the reason.
    missing: Vec<String>,
}

impl Bundle {
    fn new(file: File) -> Self {
        let archive = tar::Builder::new(GzEncoder::new(file, Compression::default()));
        Self { archive, masks: Masks::new(), missing: Vec::new() }
    }

    fn add_all(&mut self, args: &SupportArgs, socket: &Path) -> io::Result<()> {
        let version = format!("penstock {}\n", env!("CARGO_PKG_VERSION"));
        self.add("version.txt", version.as_bytes())?;
        for (name, path) in MACHINE {
            // /etc/os-release is a link, and only root can write in /etc.
            self.add_file(name, Path::new(path), Links::Follow)?;
        }
        let mut of_file = None;
        for dir in &args.config_dirs {
            let found = self.add_configuration(dir)?;
            of_file = of_file.or(found);
        }
        for (name, arguments) in HOST {
            self.add_answer(name, socket, arguments)?;
        }
        self.add_minutes(socket, of_file)?;
        self.add_answer("state/vcpus.json", socket, &["vcpu", "show", "--json"])?;
        if args.controller_socket.exists() {
            for (name, question) in CONTROLLER {
                let arguments = ["controller", question, "--json"];
                self.add_answer(name, &args.controller_socket, &arguments)?;
            }
        }
        let since = format!("-{}", args.since.trim_start_matches('-'));
        self.add_output(
            "log.txt",
            Command::new("journalctl").args(["--no-pager", "-o", "short-iso-precise"]).args([
                "--since",
                &since,
                "-u",
                "penstock*",
            ]),
        )?;
        self.add_output(
            "services.txt",
            Command::new("systemctl").args(["status", "--no-pager", "-l", "penstock*"]),
        )?;
        self.add_output("machine/links.txt", Command::new("ip").args(["-s", "-d", "link"]))?;
        Ok(())
    }

    /// Adds the daemon's state and configuration, and the minutes of contracts from the daemon's
    /// directory. `of_file` is the directory that a configuration file names, for a daemon that
    /// does not run.
    fn add_minutes(&mut self, socket: &Path, of_file: Option<StateDir>) -> io::Result<()> {
        let status = self.add_answer("state/host.json", socket, &["host", "show", "--json"])?;
        let config = self.add_answer("state/host-config.toml", socket, &["host", "config"])?;
        let dir = StateDir::of_daemon(&status)
            .or_else(|| StateDir::read(&config, "`state_dir` of the daemon's configuration"));
        let dir = dir.or(of_file).unwrap_or_default();
        let name = "counters/contracts.json";
        let arguments = ["report", "--since", "1d", "--json", "--state-dir", dir.path()];
        let report = self.add_answer(name, socket, &arguments)?;
        self.missing.extend(dir.missing(&report).map(|problem| format!("{name}: {problem}")));
        Ok(())
    }

    /// Adds all configuration files of a directory, without secrets. Returns the directory of the
    /// daemon's state that `host.toml`, or else another file, names.
    fn add_configuration(&mut self, dir: &Path) -> io::Result<Option<StateDir>> {
        // The names in the archive are absolute and without `..`, which tar refuses.
        let entries = dir.canonicalize().and_then(fs::read_dir);
        let entries = match entries {
            Ok(entries) => entries,
            Err(error) => {
                self.missing.push(format!("config: {}: {error}", dir.display()));
                return Ok(None);
            }
        };
        let mut files: Vec<PathBuf> = entries.flatten().map(|entry| entry.path()).collect();
        files.sort();
        let mut state_dir = None;
        for path in files.iter().filter(|path| path.extension().is_some_and(|of| of == "toml")) {
            let name = format!("config{}", path.display());
            // The user penstock may own the directory, and must not choose what root reads.
            let text = self.add_file(&name, path, Links::Refuse)?;
            let found = StateDir::read(&text, &format!("`state_dir` in {}", path.display()));
            if found.is_some() && (state_dir.is_none() || path.ends_with("host.toml")) {
                state_dir = found;
            }
        }
        Ok(state_dir)
    }

    /// Adds a file. Returns its bytes, or none if the file cannot be read.
    fn add_file(&mut self, name: &str, path: &Path, links: Links) -> io::Result<Vec<u8>> {
        match collect::file(path, links, PART_MAX) {
            Ok(bytes) => self.add(name, &bytes).map(|()| bytes),
            Err(error) => {
                self.missing.push(format!("{name}: {}: {error}", path.display()));
                Ok(Vec::new())
            }
        }
    }

    /// Adds the answer to a `penstock` command, and returns it.
    fn add_answer(&mut self, name: &str, socket: &Path, arguments: &[&str]) -> io::Result<Vec<u8>> {
        let mut command = Command::new(std::env::current_exe()?);
        command.args(arguments).env("PENSTOCK_SOCKET", socket);
        self.add_output(name, &mut command)
    }

    /// Adds what a command writes to standard output, and returns it.
    fn add_output(&mut self, name: &str, command: &mut Command) -> io::Result<Vec<u8>> {
        let words: Vec<_> = [command.get_program()].into_iter().chain(command.get_args()).collect();
        let words: Vec<_> = words.iter().map(|word| word.to_string_lossy()).collect();
        let line = words.join(" ");
        match collect::output(command, PROCESS_MAX, PART_MAX) {
            Ok(output) => {
                let said = String::from_utf8_lossy(&output.stderr).trim().to_owned();
                let ended = match output.status {
                    Some(status) if status.success() => None,
                    Some(status) => Some(status.to_string()),
                    None => Some(format!("killed after {} s", PROCESS_MAX.as_secs())),
                };
                let missing = ended.map(|ended| format!("{name}: {line}: {ended}: {said}"));
                self.missing.extend(missing);
                if !output.stdout.is_empty() {
                    self.add(name, &output.stdout)?;
                }
                Ok(output.stdout)
            }
            Err(error) => {
                self.missing.push(format!("{name}: {line}: {error}"));
                Ok(Vec::new())
            }
        }
    }

    /// Adds one part, without secrets.
    fn add(&mut self, name: &str, bytes: &[u8]) -> io::Result<()> {
        let text = self.masks.part(name, &String::from_utf8_lossy(bytes));
        let mut header = tar::Header::new_gnu();
        header.set_size(text.len() as u64);
        header.set_mode(0o600);
        header.set_mtime(unix_s());
        let path = Path::new("penstock-support").join(name.trim_start_matches('/'));
        self.archive.append_data(&mut header, path, text.as_bytes())
    }

    fn finish(mut self) -> io::Result<()> {
        let missing = self.missing.join("\n") + "\n";
        self.add("missing.txt", missing.as_bytes())?;
        self.archive.into_inner()?.finish()?.flush()
    }
}
