//! A Linux guest in QEMU that computes and answers pings.
//!
//! # Requirements
//!
//! The guest needs `qemu-system-x86_64`, a cloud kernel and an initramfs. `scripts/guest-image.sh`
//! writes kernel and initramfs to the cache directory. The cache directory is `$PENSTOCK_CACHE`, or
//! by default `~/.cache/penstock`. The init program of the initramfs runs commands from the guest's
//! second serial port.
//!
//! # Approach
//!
//! The guest runs under KVM if it boots under KVM within [`KVM_LIMIT`]. If the guest does not boot
//! in time, or with `PENSTOCK_ACCEL=tcg`, the guest runs under TCG. The results contain the name of
//! the QEMU accelerator.

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

/// Maximum boot time of the guest under KVM. Some machines cannot boot a stock kernel under KVM.
const KVM_LIMIT: Duration = Duration::from_secs(20);
/// Maximum boot time of the guest under TCG, on a busy machine.
const TCG_LIMIT: Duration = Duration::from_secs(90);
const US: Station = Station { mac: [2, 0x70, 0x73, 0, 0, 1], ip: [10, 77, 0, 1] };
const GUEST: Station = Station { mac: [2, 0x70, 0x73, 0, 0, 2], ip: [10, 77, 0, 2] };
const CMDLINE: &str = "console=ttyS0 quiet panic=-1 mitigations=off no_timer_check tsc=reliable \
    nowatchdog rcupdate.rcu_cpu_stall_suppress=1 net.ifnames=0 penstock.ip=10.77.0.2/24";

/// Kernel and initramfs from which a Linux guest boots.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Image {
    kernel: PathBuf,
    initrd: PathBuf,
}

impl Image {
    /// Finds the initramfs in the cache directory, and a kernel in `/boot` or in the cache
    /// directory. Returns an error that names a missing program or image.
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

/// Returns the last file in `dir`, by name, with a name that begins with `begin` and ends with
/// `end`.
fn last(dir: &Path, begin: &str, end: &str) -> Option<PathBuf> {
    let files = std::fs::read_dir(dir).ok()?.flatten().map(|entry| entry.path());
    let is = |path: &PathBuf| {
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        name.starts_with(begin) && name.ends_with(end)
    };
    files.filter(is).max()
}

/// A Linux guest that computes. The guest's vCPU runs on the worker's core, and the other threads
/// of QEMU run on the generator's core.
#[derive(Debug)]
pub(super) struct Linux {
    pub name: String,
    pub accel: &'static str,
    /// Socket of the guest's network link. Each datagram of the socket contains one Ethernet frame.
    pub wire: UdpSocket,
    pub us: Station,
    pub guest: Station,
    daemon: Daemon,
    _agent: File,
}

impl Linux {
    /// Boots the Linux guest in QEMU. QEMU uses TCG if `accel` or `PENSTOCK_ACCEL` is `tcg`, or if
    /// the guest does not boot under KVM.
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
        // This port has just been freed, so QEMU can bind it.
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

    /// Returns the guest's `[[vm]]` table for a scheduler's configuration.
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
