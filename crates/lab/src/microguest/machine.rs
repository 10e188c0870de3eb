//! The virtual processor of a micro-guest: it runs on KVM, in ring 3 of long mode.
#![allow(unsafe_code, reason = "KVM gets the address of the guest's memory")]

use anyhow::{Context as _, bail, ensure};
use kvm_bindings::{
    KVM_MAX_CPUID_ENTRIES, Msrs, kvm_dtable, kvm_msr_entry, kvm_regs, kvm_segment,
    kvm_userspace_memory_region,
};
use kvm_ioctls::{Kvm, VcpuExit, VcpuFd, VmFd};
use nix::errno::Errno;
use nix::time::{ClockId, ClockNanosleepFlags, clock_gettime, clock_nanosleep};
use penstock_dataplane::tsc::{self, CycleCounter as _, Tsc};
use penstock_units::{Cycles, Nanos, TscRate};
use vm_memory::{Bytes as _, GuestAddress};

use super::board::{BOARD, BYTES, Board, CODE, PACKETS, SLEEP_PORT, STOP_PORT, TABLES};

const DEVICE: &str = "/dev/kvm";
/// Number of the register `IA32_TIME_STAMP_COUNTER` (Intel SDM vol. 4, table 2-2).
const IA32_TSC: u32 = 0x10;
/// Number of readings of the guest's time stamp counter. The lab uses only the reading of the
/// guest's counter that took the shortest time.
const READINGS: usize = 32;

/// A micro-guest that is ready to run.
#[derive(Debug)]
pub(super) struct Machine {
    vcpu: VcpuFd,
    hz: TscRate,
    // Keeps the VM and KVM open as long as the processor.
    _vm: VmFd,
    _kvm: Kvm,
}

impl Machine {
    /// Creates a virtual processor that uses the memory of `board`. `board` must exist longer than
    /// the virtual processor.
    pub fn new(board: &Board) -> anyhow::Result<Self> {
        let kvm = open()?;
        let vm = kvm.create_vm().context("KVM: making a VM")?;
        let region = kvm_userspace_memory_region {
            slot: 0,
            flags: 0,
            guest_phys_addr: 0,
            memory_size: u64::try_from(BYTES)?,
            userspace_addr: board.host_address()?,
        };
        // SAFETY: the mapping has `BYTES` bytes, and `Board` keeps it while the guest runs.
        // WHY: KVM needs the address of the memory, and there is no safe form.
        unsafe { vm.set_user_memory_region(region) }.context("KVM: giving the VM its memory")?;
        let vcpu = vm.create_vcpu(0).context("KVM: making a virtual processor")?;
        let cpuid = kvm.get_supported_cpuid(KVM_MAX_CPUID_ENTRIES).context("KVM: features")?;
        vcpu.set_cpuid2(&cpuid).context("KVM: setting features")?;
        tables(board)?;
        enter_ring_3(&vcpu)?;
        board.set_ahead(ahead(&vcpu)?);
        Ok(Self { vcpu, hz: tsc::calibrate(), _vm: vm, _kvm: kvm })
    }

    /// Runs the guest on this thread until the guest is stopped.
    pub fn run(mut self, board: &Board) -> anyhow::Result<()> {
        loop {
            match self.vcpu.run() {
                Ok(VcpuExit::IoOut(SLEEP_PORT, _)) => sleep(board, self.hz),
                Ok(VcpuExit::IoOut(STOP_PORT, _)) => return Ok(()),
                // A signal interrupted the guest, or the kernel requests another call.
                Ok(VcpuExit::Intr) => {}
                Err(error) if [libc::EINTR, libc::EAGAIN].contains(&error.errno()) => {}
                Ok(other) => bail!("KVM: the guest ended with {other:?}"),
                Err(error) => return Err(error).context("KVM: running the guest"),
            }
        }
    }
}

fn open() -> anyhow::Result<Kvm> {
    let kvm = Kvm::new().map_err(|error| match error.errno() {
        libc::ENOENT | libc::ENODEV | libc::ENXIO => anyhow::anyhow!(
            "{DEVICE} does not exist: micro-guests need KVM; enable virtualization in the \
             firmware, or nested virtualization on the host of this machine, and load kvm_intel \
             or kvm_amd"
        ),
        libc::EACCES | libc::EPERM => {
            anyhow::anyhow!("{DEVICE} cannot be opened: run as root, or join the group `kvm`")
        }
        _ => anyhow::Error::from(error).context(format!("opening {DEVICE}")),
    })?;
    let version = kvm.get_api_version();
    ensure!(version == 12, "{DEVICE} has API version {version}, but micro-guests need 12");
    Ok(kvm)
}

/// Returns an error that names the missing feature if guests cannot run on this machine.
pub(super) fn is_available() -> anyhow::Result<()> {
    open().map(drop)
}

/// Fills the guest's page tables, which map one page of 2 MiB at address 0 for user mode (Intel SDM
/// vol. 3A §4.5).
fn tables(board: &Board) -> anyhow::Result<()> {
    const PRESENT_WRITABLE_USER: u64 = 0b111;
    const LARGE: u64 = 1 << 7;
    let entries = [
        (TABLES, (TABLES + 0x1000) | PRESENT_WRITABLE_USER),
        (TABLES + 0x1000, (TABLES + 0x2000) | PRESENT_WRITABLE_USER),
        (TABLES + 0x2000, PRESENT_WRITABLE_USER | LARGE),
    ];
    for (at, entry) in entries {
        board.memory().write_obj(entry, GuestAddress(at)).context("writing page tables")?;
    }
    Ok(())
}

/// Returns a flat segment with privilege level 3.
fn segment(selector: u16, code: bool) -> kvm_segment {
    kvm_segment {
        base: 0,
        limit: u32::MAX,
        selector,
        // Readable code, or writable data. In both, the accessed bit is set.
        type_: if code { 0b1011 } else { 0b0011 },
        present: 1,
        dpl: 3,
        db: u8::from(!code),
        s: 1,
        l: u8::from(code),
        g: 1,
        ..kvm_segment::default()
    }
}

fn enter_ring_3(vcpu: &VcpuFd) -> anyhow::Result<()> {
    // Protected mode, standard floating point, write protection, paging.
    const CR0: u64 = 1 | 1 << 1 | 1 << 4 | 1 << 5 | 1 << 16 | 1 << 31;
    const CR4_PAE: u64 = 1 << 5;
    // Long mode, enabled and active.
    const EFER: u64 = 1 << 8 | 1 << 10;
    // Bit 1, which is always set, and I/O privilege level 3. Interrupts are disabled.
    const RFLAGS: u64 = 1 << 1 | 3 << 12;
    let mut special = vcpu.get_sregs().context("KVM: reading registers")?;
    special.cs = segment(0x33, true);
    let data = segment(0x2b, false);
    (special.ds, special.es, special.fs, special.gs, special.ss) = (data, data, data, data, data);
    // The guest has no handlers for interrupts and exceptions.
    special.gdt = kvm_dtable::default();
    special.idt = kvm_dtable::default();
    (special.cr0, special.cr3, special.cr4, special.efer) = (CR0, TABLES, CR4_PAE, EFER);
    vcpu.set_sregs(&special).context("KVM: entering ring 3")?;
    let registers =
        kvm_regs { rip: CODE, rflags: RFLAGS, rdi: BOARD, rsi: PACKETS, ..kvm_regs::default() };
    vcpu.set_regs(&registers).context("KVM: setting registers")
}

/// Measures the guest's time stamp counter minus the host's counter, modulo 2^64.
fn ahead(vcpu: &VcpuFd) -> anyhow::Result<u64> {
    let mut best: Option<(u64, u64)> = None;
    for _ in 0..READINGS {
        let entry = kvm_msr_entry { index: IA32_TSC, ..kvm_msr_entry::default() };
        let mut msrs = Msrs::from_entries(&[entry])
            .map_err(|error| anyhow::anyhow!("a list of registers: {error:?}"))?;
        let before = Tsc.now().0;
        let read = vcpu.get_msrs(&mut msrs).context("KVM: reading the guest's time")?;
        let after = Tsc.now().0;
        ensure!(read == 1, "KVM does not report the guest's time stamp counter");
        let width = after.wrapping_sub(before);
        let guest = msrs.as_slice().first().map_or(0, |entry| entry.data);
        if best.is_none_or(|(least, _)| width < least) {
            best = Some((width, guest.wrapping_sub(before.wrapping_add(width / 2))));
        }
    }
    Ok(best.map_or(0, |(_, ahead)| ahead))
}

/// Sleeps until the guest's next packet or period is due, or for the fixed length of a sleep.
fn sleep(board: &Board, hz: TscRate) {
    let (until, pause_ns) = board.idle();
    let Ok(now) = clock_gettime(ClockId::CLOCK_MONOTONIC) else { return };
    // The clock is read first. If this thread loses its core between the two reads, the sleep is
    // too short, and the guest sleeps again.
    let counter = Tsc.now().0;
    let left = if pause_ns > 0 {
        Nanos(pause_ns)
    } else {
        match until.checked_sub(counter) {
            Some(left) => hz.to_nanos(Cycles(left)),
            None => return,
        }
    };
    let wake = now + std::time::Duration::from_nanos(left.0).into();
    let absolute = ClockNanosleepFlags::TIMER_ABSTIME;
    while clock_nanosleep(ClockId::CLOCK_MONOTONIC, absolute, &wake) == Err(Errno::EINTR) {}
}
