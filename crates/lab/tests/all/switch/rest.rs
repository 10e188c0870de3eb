//! Tests that the worker does not poll silent ports, and serves a silent port again when the port
//! sends.

use penstock_dataplane::worker::AWAKE_MIN;
use penstock_guest::driver::{Features, VirtioNet, VnetHdr};

use crate::switch::rig::{Port, Rig, announce, frame, mac, receive, send, wait};

const PORTS: usize = AWAKE_MIN + 4;

/// Starts a switch with a driver on each port. The driver of the last port has the features
/// `wanted`.
fn bed(wanted: Features) -> (Rig, Vec<VirtioNet>) {
    let rig = Rig::start(&vec![Port::default(); PORTS]);
    let connect = |i| {
        let mut config = rig.driver(i);
        if i == PORTS - 1 {
            config.wanted = wanted;
        }
        VirtioNet::connect(config).unwrap()
    };
    let drivers = (0..PORTS).map(connect).collect();
    rig.wait_up(PORTS);
    (rig, drivers)
}

fn resting(rig: &Rig) -> u64 {
    rig.worker.counters().resting.get()
}

fn kicks(driver: &mut VirtioNet) -> u64 {
    driver.tx().counters().kicks
}

fn a_silent_port_speaks_again(wanted: Features) {
    let (rig, mut drivers) = bed(wanted);
    let [first, .., last] = &mut drivers[..] else { unreachable!("there are {PORTS}") };
    announce(first, mac(1), last);
    announce(last, mac(2), first);
    wait("all that may rest do", || resting(&rig) == (PORTS - AWAKE_MIN) as u64);
    for n in 0..3 {
        // Both ports may be at rest, because both were silent long enough.
        wait("all that may rest do", || resting(&rig) == (PORTS - AWAKE_MIN) as u64);
        send(last, &VnetHdr::default(), &frame(mac(2), mac(1), 60, n));
        assert_eq!(receive(first, 1)[0].1, frame(mac(2), mac(1), 60, n));
        send(first, &VnetHdr::default(), &frame(mac(1), mac(2), 60, n));
        assert_eq!(receive(last, 1)[0].1, frame(mac(1), mac(2), 60, n));
    }
    rig.check();
}

#[test]
fn a_silent_port_speaks_again_by_flag() {
    a_silent_port_speaks_again(Features::BASIC.without(Features::EVENT_IDX));
}

#[test]
fn a_silent_port_speaks_again_by_event_index() {
    a_silent_port_speaks_again(Features::BASIC | Features::EVENT_IDX);
}

#[test]
fn a_driver_kicks_once_when_it_wakes_and_not_while_it_is_awake() {
    let (rig, mut drivers) = bed(Features::BASIC);
    wait("all that may rest do", || resting(&rig) == (PORTS - AWAKE_MIN) as u64);
    let before: Vec<u64> = drivers.iter_mut().map(kicks).collect();
    // All drivers send at the same time. Only drivers of resting ports kick.
    for (i, driver) in drivers.iter_mut().enumerate() {
        let from = mac(u8::try_from(i).unwrap());
        send(driver, &VnetHdr::default(), &frame(from, mac(200), 60, 0));
    }
    rig.until("every frame is taken", |rig| (0..PORTS).all(|i| rig.counters(i).rx_frames == 1));
    let kicked: Vec<u64> = drivers.iter_mut().map(kicks).zip(before).map(|(a, b)| a - b).collect();
    assert!(kicked.iter().all(|&kicks| kicks <= 1), "{kicked:?}");
    let sum: u64 = kicked.iter().sum();
    assert!(sum >= 1, "nobody was at rest");
    rig.until("the kicks are heard", |rig| rig.worker.counters().kicks.get() >= sum);
    rig.check();
}

#[test]
fn a_driver_that_forgets_to_kick_is_found_by_a_look() {
    let (rig, mut drivers) = bed(Features::BASIC);
    wait("all that may rest do", || resting(&rig) == (PORTS - AWAKE_MIN) as u64);
    for (i, driver) in drivers.iter_mut().enumerate() {
        let tx = driver.tx();
        let slot = tx.take().unwrap();
        let bytes = frame(mac(u8::try_from(i).unwrap()), mac(200), 60, 0);
        tx.slot_mut(slot)[12..12 + bytes.len()].copy_from_slice(&bytes);
        tx.push(slot, &VnetHdr::default(), bytes.len()).unwrap();
        tx.publish_silently();
    }
    rig.until("every frame is taken", |rig| (0..PORTS).all(|i| rig.counters(i).rx_frames == 1));
    rig.check();
}
