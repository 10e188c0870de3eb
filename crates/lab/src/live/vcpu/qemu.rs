//! A Linux guest that computes, with QEMU, and pings to the guest.
//!
//! # Requirements
//!
//! The guest needs `qemu-system-x86_64`, and two files that `scripts/guest-image.sh` leaves in the
//! cache: a cloud kernel and an initramfs. The init of the initramfs runs commands from the second
//! serial port.
//!
//! # Approach
//!
//! The guest runs under KVM if the kernel gets ready there in time. Otherwise, or with
//! `PENSTOCK_ACCEL=tcg`, it runs under TCG. The results say which one it was.

use std::fs::{File, OpenOptions};
use std::io::Write as _;
use std::net::UdpSocket;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::{Context as _, bail};
use nix::sys::stat::Mode as FileMode;
use nix::unistd::mkfifo;
use penstock_vcpu_host::restore;
use penstock_vcpu_host::threads;

use super::bed::Stage;
use super::wire::Station;
use penstock_guest::bed::process::{Daemon, await_some};

/// Time limit for the guest to get ready under KVM. Where a stock kernel does not boot, the guest
/// never gets ready.
const KVM_LIMIT: Duration = Duration::from_secs(20);
/// Time limit under TCG, on a machine that has other work.
const TCG_LIMIT: Duration = Duration::from_secs(90);
const US: Station = Station { mac: [2, 0x70, 0x73, 0, 0, 1], ip: [10, 77, 0, 1] };
const GUEST: Station = Station { mac: [2, 0x70, 0x73, 0, 0, 2], ip: [10, 77, 0, 2] };
const CMDLINE: &str = "console=ttyS0 quiet panic=-1 mitigations=off no_timer_check tsc=reliable \
    nowatchdog rcupdate.rcu_cpu_stall_suppress=1 net.ifnames=0 penstock.ip=10.77.0.2/24";

/// Files from which a guest boots.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Image {
    kernel: PathBuf,
    initrd: PathBuf,
}

impl Image {
    /// Finds the files in the cache. The error says what is missing, for the results.
    pub fn find() -> Result<Self, String> {
        let path = std::env::var_os("PATH").unwrap_or_default();
        if !std::env::split_paths(&path).any(|dir| dir.join(QEMU).is_file()) {
            return Err(format!("{QEMU} is not installed"));
        }
        let dir = std::env::var_os("PENSTOCK_CACHE").map(PathBuf::from).unwrap_or_else(|| {
            let home = std::env::var_os("HOME").unwrap_or_else(|| "/root".into());
            let cache = std::env::var_os("XDG_CACHE_HOME").map(PathBuf::from);
            cache.unwrap_or_else(|| Path::new(&home).join(".cache")).join("penstock")
        });
        let missing = || format!("no guest image in {}: run scripts/guest-image.sh", dir.display());
        let initrd = last(&dir, "guest-", ".cpio.gz").ok_or_else(missing)?;
        let kernels = [PathBuf::from("/boot"), dir.join("kernel/boot")];
        let mut kernels = kernels.iter().filter_map(|dir| last(dir, "vmlinuz-", "-cloud-amd64"));
        Ok(Self { kernel: kernels.next().ok_or_else(missing)?, initrd })
    }
}

const QEMU: &str = "qemu-system-x86_64";

/// The last file by name that begins with `begin` and ends with `end`.
fn last(dir: &Path, begin: &str, end: &str) -> Option<PathBuf> {
    let files = std::fs::read_dir(dir).ok()?.flatten().map(|entry| entry.path());
    let is = |path: &PathBuf| {
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        name.starts_with(begin) && name.ends_with(end)
    };
    files.filter(is).max()
}

/// A guest that computes. Its vCPU is on the scheduled core, and the rest of QEMU on the other.
#[derive(Debug)]
pub(super) struct Linux {
    pub name: String,
    pub accel: &'static str,
    /// The wire, with frames as datagrams.
    pub wire: UdpSocket,
    pub us: Station,
    pub guest: Station,
    daemon: Daemon,
    _agent: File,
}

impl Linux {
    /// Boots the guest, under KVM unless `accel` says otherwise or the guest does not get ready.
    pub fn start(stage: &Stage, image: &Image, accel: Option<&str>) -> anyhow::Result<Self> {
        let told = std::env::var("PENSTOCK_ACCEL").ok();
        if accel.or(told.as_deref()) != Some("tcg") {
            match Self::boot(stage, image, "kvm", KVM_LIMIT) {
                Ok(guest) => return Ok(guest),
                Err(error) => eprintln!("no boot under KVM here, so TCG is used: {error:#}"),
            }
        }
        Self::boot(stage, image, "tcg", TCG_LIMIT)
    }

    fn boot(
        stage: &Stage,
        image: &Image,
        accel: &'static str,
        limit: Duration,
    ) -> anyhow::Result<Self> {
        let name = format!("lab{}-linux", std::process::id());
        let dir = stage.bed.dir().join(accel);
        std::fs::remove_dir_all(&dir).or_else(|error| match error.kind() {
            std::io::ErrorKind::NotFound => Ok(()),
            _ => Err(error),
        })?;
        std::fs::create_dir_all(&dir).context("a directory for QEMU")?;
        for pipe in ["agent.in", "agent.out"] {
            mkfifo(&dir.join(pipe), FileMode::S_IRUSR | FileMode::S_IWUSR)?;
        }
        let wire = UdpSocket::bind("127.0.0.1:0").context("the guest's wire")?;
        // The port was freed just now. No other program has it, so QEMU can take it.
        let theirs = UdpSocket::bind("127.0.0.1:0")?.local_addr()?;
        wire.connect(theirs)?;
        wire.set_nonblocking(true)?;
        let (how, ours) =
            (if accel == "kvm" { "kvm" } else { "tcg,thread=multi" }, wire.local_addr()?);
        let mut command = Command::new(QEMU);
        command.args(["-name", &format!("guest={name},debug-threads=on"), "-accel", how]);
        command.args(["-cpu", "max", "-m", "128", "-nodefaults", "-no-user-config", "-no-reboot"]);
        command.args(["-display", "none", "-monitor", "none", "-append", CMDLINE, "-kernel"]);
        command.arg(&image.kernel).arg("-initrd").arg(&image.initrd);
        let console = dir.join("console.log");
        for (id, how) in [
            ("console", format!("file,id=console,path={}", console.display())),
            ("agent", format!("pipe,id=agent,path={}", dir.join("agent").display())),
        ] {
            command.args(["-chardev", &how, "-serial", &format!("chardev:{id}")]);
        }
        let card = format!("virtio-net-pci,netdev=n0,mac={},romfile=", hex(GUEST.mac));
        command.args(["-netdev", &format!("socket,id=n0,udp={ours},localaddr={theirs}")]);
        command.args(["-device", &card]).process_group(0).stdin(Stdio::null());
        let log = dir.join("qemu.log");
        let mut daemon =
            stage.bed.on_generator_core(|| Daemon::start(&mut command, log, stage.bed.guard()))?;
        let ready = await_some("a Linux guest that is ready", limit, || {
            daemon.check()?;
            let said = std::fs::read_to_string(&console).unwrap_or_default();
            Ok(said.lines().any(|line| line.starts_with("READY")).then_some(()))
        });
        ready.with_context(|| daemon.last_words())?;
        let agent = OpenOptions::new().read(true).write(true).open(dir.join("agent.in"));
        let mut agent = agent.context("the guest's second serial port")?;
        agent.write_all(b"1 10 (while :; do :; done) &\n").context("having it compute")?;
        let guest = Self { name, accel, wire, us: US, guest: GUEST, daemon, _agent: agent };
        let Some(vcpu) = threads::of_process(guest.daemon.id())?.first().copied() else {
            bail!("QEMU has no virtual processor");
        };
        restore::confine(vcpu.tid, &[stage.bed.worker_core()])?;
        Ok(guest)
    }

    /// The guest's table in a scheduler's configuration.
    pub fn table(&self, deadline_ms: u32) -> String {
        let name = &self.name;
        format!(
            "[[vm]]\nname = \"{name}\"\ndomain = \"{name}\"\nvcpu_mode = \"aperiodic\"\n\
             deadline = \"{deadline_ms} ms\"\nio_reserve = 50\n"
        )
    }
}

fn hex(mac: [u8; 6]) -> String {
    mac.map(|byte| format!("{byte:02x}")).join(":")
}
