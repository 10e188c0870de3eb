//! Tests of a hypervisor's requests to a switch while the guest runs. The hypervisor makes the
//! switch log written pages, adds and removes memory, and replaces file descriptors. No request of
//! the hypervisor may lose a frame.

use std::collections::{BTreeMap, BTreeSet};

use penstock_dataplane::port::AttachState;
use penstock_guest::driver::{
    Descriptor, DirtyPages, DriverConfig, Features, GuestMemory, VirtioNet, VnetHdr,
};

use super::pair;
use super::rig::{Port, Rig, frame, mac, receive, send};

const PAGE: usize = 4096;

/// Returns the bytes of the page at guest address `at`.
fn page(vm: &VirtioNet, at: u64) -> Vec<u8> {
    let mut bytes = vec![0; PAGE];
    assert!(vm.memory().read(at, &mut bytes), "page {at:#x} is not the guest's");
    bytes
}

/// Returns the guest addresses of the pages that the switch may write.
fn writable(vm: &mut VirtioNet) -> BTreeSet<u64> {
    let ranges = vm.written_by_switch();
    let pages = |(at, len): (u64, usize)| (at..at + len as u64).step_by(PAGE);
    ranges.into_iter().flat_map(pages).collect()
}

/// A copy of a guest's memory, updated from the log as in a migration.
struct Copy {
    pages: BTreeMap<u64, Vec<u8>>,
    marked: u64,
}

impl Copy {
    fn new(vm: &mut VirtioNet) -> Self {
        let pages = writable(vm).into_iter().map(|at| (at, page(vm, at))).collect();
        Self { pages, marked: 0 }
    }

    fn follow(&mut self, vm: &VirtioNet, log: &DirtyPages) {
        for at in log.take() {
            let copy = self.pages.get_mut(&at);
            *copy.unwrap_or_else(|| panic!("page {at:#x} is marked, and nobody may write it")) =
                page(vm, at);
            self.marked += 1;
        }
    }

    fn assert_same(&self, vm: &VirtioNet) {
        let stale: Vec<_> =
            self.pages.iter().filter(|(at, copy)| **copy != page(vm, **at)).collect();
        assert!(stale.is_empty(), "{} pages were written and not marked", stale.len());
    }
}

/// Sends `n` frames from `a` to `b`, one by one, and checks that each frame arrives.
fn exchange(a: &mut VirtioNet, b: &mut VirtioNet, from: u32, n: u32) {
    for k in from..from + n {
        let f = frame(mac(0), mac(1), 60 + (k as usize * 41) % 1440, k);
        send(a, &VnetHdr::default(), &f);
        assert_eq!(receive(b, 1)[0].1, f);
    }
}

fn kinds() -> Vec<(Features, usize)> {
    let basic = Features::VERSION_1 | Features::MRG_RXBUF;
    vec![
        (Features::VERSION_1, 2048),
        (basic, 256),
        (basic | Features::EVENT_IDX | Features::IN_ORDER, 2048),
    ]
}

#[test]
fn a_copy_made_by_the_log_is_the_guests_memory() {
    for (features, buffer) in kinds() {
        let with = |mut c: DriverConfig| {
            c.wanted = features;
            c.required = features;
            c.rx_buffer_bytes = buffer;
            c
        };
        let (rig, mut a, mut b) = pair(with);
        exchange(&mut a, &mut b, 0, 100);
        let (log_a, log_b) = (a.log_writes().unwrap(), b.log_writes().unwrap());
        let (mut copy_a, mut copy_b) = (Copy::new(&mut a), Copy::new(&mut b));
        for round in 0..20 {
            exchange(&mut a, &mut b, 100 * round, 37);
            copy_b.follow(&b, &log_b);
            copy_a.follow(&a, &log_a);
        }
        // After the rings have stopped, the log includes the last written pages.
        a.close();
        b.close();
        rig.wait_gone_of(&[0, 1]);
        copy_b.follow(&b, &log_b);
        copy_a.follow(&a, &log_a);
        copy_a.assert_same(&a);
        copy_b.assert_same(&b);
        assert!(copy_b.marked >= 20 * 2, "{features:?}: {} pages marked", copy_b.marked);
        rig.check();
    }
}

#[test]
fn logging_goes_on_and_off_under_traffic_without_a_lost_frame() {
    let (rig, mut a, mut b) = pair(|c| c);
    let mut sent = 0;
    for _ in 0..10 {
        let log = b.log_writes().unwrap();
        exchange(&mut a, &mut b, sent, 20);
        assert_ne!(log.take(), [0_u64; 0]);
        b.stop_logging().unwrap();
        log.take();
        exchange(&mut a, &mut b, sent + 20, 20);
        assert_eq!(log.take(), [0_u64; 0], "logged although nobody wants it");
        sent += 40;
    }
    assert_eq!(rig.counters(0).dropped(), 0);
    assert!(rig.counters(0).forwarded >= u64::from(sent));
    rig.check();
}

/// Sends the frame `f` from the guest memory `window` through the VM's second queue pair.
fn send_from(vm: &mut VirtioNet, window: &mut penstock_guest::driver::Window, f: &[u8]) {
    window.bytes_mut(0, 12).fill(0);
    window.bytes_mut(12, f.len()).copy_from_slice(f);
    let (addr, len) = (window.guest(0), u32::try_from(12 + f.len()).unwrap());
    let mut raw = vm.raw(3);
    raw.write_desc(0, Descriptor { addr, len, flags: 0, next: 0 });
    let at = raw.avail_idx();
    raw.write_avail(at, 0);
    raw.write_avail_idx(at.wrapping_add(1));
    raw.kick();
}

#[test]
fn memory_comes_and_goes_under_traffic_without_a_lost_frame() {
    let two = Port { queue_pairs: 2, ..Port::default() };
    let rig = Rig::start(&[two, Port::default()]);
    let mut config = rig.driver(0);
    config.queue_pairs = 2;
    let mut a = VirtioNet::connect(config).unwrap();
    let mut b = VirtioNet::connect(rig.driver(1)).unwrap();
    rig.wait_up(2);
    let hello = frame(mac(1), penstock_units::MacAddr::BROADCAST, 60, 0);
    send(&mut b, &VnetHdr::default(), &hello);
    rig.until("the switch knows the receiver", |rig| rig.counters(1).forwarded == 1);
    assert_eq!(a.memory_slots().unwrap(), 32);
    for round in 0..30 {
        let before = rig.counters(0).rx_errors;
        let (memory, mut window) = GuestMemory::spare(round, 8192).unwrap();
        let f = frame(mac(0), mac(1), 700, round.into());
        exchange(&mut a, &mut b, round.into(), 5);
        a.add_memory(&memory).unwrap();
        send_from(&mut a, &mut window, &f);
        assert_eq!(receive(&mut b, 1)[0].1, f);
        exchange(&mut a, &mut b, round.into(), 5);
        a.remove_memory(&memory).unwrap();
        assert_eq!(rig.counters(0).rx_errors, before);
        // The ring still works, but the switch no longer has the memory.
        send_from(&mut a, &mut window, &f);
        rig.until("the chain is refused", |rig| rig.counters(0).rx_errors == before + 1);
        exchange(&mut a, &mut b, round.into(), 5);
    }
    assert_eq!(rig.counters(0).dropped(), 0);
    assert_eq!(rig.counters(0).rx_frames, 30 * 16);
    rig.check();
}

/// Returns the numbers of file descriptors and mappings of a guest's memory in the test's process.
/// The switch and the guest run in the test's process.
fn holders(memory: &GuestMemory) -> (usize, usize) {
    let inode = memory.inode().unwrap();
    let fds = std::fs::read_dir("/proc/self/fd").unwrap().flatten();
    let is_it = |path: std::path::PathBuf| {
        std::fs::metadata(path).is_ok_and(|m| std::os::unix::fs::MetadataExt::ino(&m) == inode)
    };
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    let inode = inode.to_string();
    let mapped = maps.lines().filter(|line| line.split_whitespace().nth(4) == Some(&inode));
    (fds.filter(|fd| is_it(fd.path())).count(), mapped.count())
}

#[test]
fn a_region_said_once_for_each_queue_pair_is_one_region() {
    // QEMU 7.2 sends ADD_MEM_REG and REM_MEM_REG for each of its queue pairs.
    for format in [Features::NONE, Features::RING_PACKED] {
        let two = Port { queue_pairs: 2, ..Port::default() };
        let rig = Rig::start(&[two, Port::default()]);
        let mut config = rig.driver(0);
        config.queue_pairs = 2;
        config.wanted = Features::BASIC | format;
        let mut a = VirtioNet::connect(config).unwrap();
        let mut b = VirtioNet::connect(rig.driver(1)).unwrap();
        rig.wait_up(2);
        let (memory, _window) = GuestMemory::spare(0, 8192).unwrap();
        let before = holders(&memory);
        for round in 0..10 {
            a.add_memory(&memory).unwrap();
            a.add_memory(&memory).unwrap();
            exchange(&mut a, &mut b, round, 3);
            let (fds, mapped) = holders(&memory);
            // The switch keeps one descriptor, for a process that continues the session.
            let once = (before.0 + 1, before.1 + 1);
            assert_eq!((fds, mapped), once, "mapped and kept once, nothing left open");
            a.remove_memory(&memory).unwrap();
            a.remove_memory(&memory).unwrap();
            exchange(&mut a, &mut b, round, 3);
            assert_eq!(holders(&memory), before);
        }
        assert_eq!(rig.queues_up(0), 2);
        rig.check();
    }
}

#[test]
fn a_wrong_change_of_memory_is_refused_and_the_driver_may_come_again() {
    let (rig, mut a, mut b) = pair(|c| c);
    let (small, _window) = GuestMemory::spare(1, 4096).unwrap();
    let whole = std::sync::Arc::clone(a.memory());
    type Change<'a> = Box<dyn Fn(&mut VirtioNet) -> bool + 'a>;
    let refused: [(&str, Change<'_>); 3] = [
        ("a region that is not there", Box::new(|vm| vm.remove_memory(&small).is_err())),
        ("the region of its rings", Box::new(|vm| vm.remove_memory(&whole).is_err())),
        (
            "a region over another",
            Box::new(|vm| {
                // Another file has the same guest addresses.
                let (other, _window) = GuestMemory::spare(1, 4096).unwrap();
                vm.add_memory(&small).unwrap();
                vm.add_memory(&other).is_err()
            }),
        ),
    ];
    for (what, change) in refused {
        assert!(change(&mut a), "{what} was not refused");
        rig.wait_gone_of(&[0]);
        assert_eq!(rig.state(1), AttachState::Up, "{what} hurt another port");
        a.reconnect().unwrap();
        rig.wait_up(2);
        exchange(&mut a, &mut b, 0, 10);
    }
    // The guest has one region and may add 31. The switch refuses the next one.
    let spare: Vec<_> = (10..42).map(|n| GuestMemory::spare(n, 4096).unwrap().0).collect();
    spare[..31].iter().for_each(|memory| a.add_memory(memory).unwrap());
    exchange(&mut a, &mut b, 0, 10);
    assert!(a.add_memory(&spare[31]).is_err());
    rig.check();
}

#[test]
fn a_driver_that_shortens_its_memory_loses_its_session_and_nobody_else_does() {
    let (rig, mut a, mut b) = pair(|c| c);
    for round in 0..5 {
        let file = std::fs::File::from(
            nix::sys::memfd::memfd_create(c"short", nix::sys::memfd::MFdFlags::MFD_CLOEXEC)
                .unwrap(),
        );
        file.set_len(1 << 20).unwrap();
        let (guest, user) = (1 << 40, 1 << 41);
        let region = vhost::VhostUserMemoryRegionInfo {
            guest_phys_addr: guest,
            memory_size: 1 << 20,
            userspace_addr: user,
            mmap_offset: 0,
            mmap_handle: std::os::fd::AsRawFd::as_raw_fd(&file),
        };
        use vhost::vhost_user::VhostUserFrontend;
        a.frontend().unwrap().add_mem_region(&region).unwrap();
        file.set_len(4096).unwrap();
        // This frame is beyond the new end of the file.
        let mut raw = a.raw(1);
        let at = raw.avail_idx();
        let slot = at % raw.size();
        raw.write_desc(slot, Descriptor { addr: guest + 8192, len: 100, flags: 0, next: 0 });
        raw.write_avail(slot, slot);
        raw.write_avail_idx(at.wrapping_add(1));
        raw.kick();
        rig.until("the session ends and says why", |rig| {
            rig.status(0).error.is_some_and(|error| error.contains("shortened the file"))
        });
        assert_eq!(rig.state(1), AttachState::Up);
        let mut config = rig.driver(0);
        config.wait = penstock_testing::patience();
        a = VirtioNet::connect(config).unwrap();
        rig.wait_up(2);
        exchange(&mut a, &mut b, round, 5);
    }
}

#[test]
fn a_driver_that_sleeps_is_woken_by_a_switch_that_comes_back() {
    use std::os::fd::AsFd;
    // This simulates a switch that returned chains and died before it notified the driver.
    let (rig, mut a, mut b) = pair(|c| c);
    assert!(b.rx().arm());
    b.rx().clear_call();
    b.reconnect().unwrap();
    rig.wait_up(2);
    let call = b.rx().call_fd().as_fd().try_clone_to_owned().unwrap();
    let mut fds = [nix::poll::PollFd::new(call.as_fd(), nix::poll::PollFlags::POLLIN)];
    assert_eq!(nix::poll::poll(&mut fds, 5000_u16), Ok(1), "not woken");
    exchange(&mut a, &mut b, 0, 3);
}
