//! A configured host in the test's process, with a driver behind each of the host's ports.
#![expect(clippy::disallowed_methods, reason = "a test's waits are bounded by the clock")]

use std::collections::BTreeMap;
use std::time::Instant;

use penstock_control::config;
use penstock_control::host::{FdbFilter, Host};
use penstock_guest::driver::{DriverConfig, VirtioNet, VnetHdr};
use penstock_testing::{TempDir, patience, temp_dir, wait_until};
use penstock_units::MacAddr;

pub struct Bed {
    dir: TempDir,
    host: Host,
    drivers: BTreeMap<&'static str, VirtioNet>,
}

impl Bed {
    pub fn start(text: &str, ports: &[&'static str]) -> Self {
        let dir = temp_dir();
        let path = dir.join("host.toml");
        std::fs::write(&path, localised(text, &dir)).unwrap();
        let config = config::load(&path).unwrap_or_else(|errors| panic!("{errors}"));
        let host = Host::start(config, Some(path)).unwrap();
        let connect = |name: &&'static str| {
            let mut config = DriverConfig::new(dir.join(name));
            config.ring_size = 1024;
            (*name, VirtioNet::connect(config).unwrap())
        };
        let drivers = ports.iter().map(connect).collect();
        let bed = Self { dir, host, drivers };
        let up = || bed.host.ports().iter().all(|p| p.state == "up");
        wait_until("all ports are up", up);
        bed
    }

    pub fn send(&mut self, from: &str, frame: &[u8]) {
        let tx = self.drivers.get_mut(from).unwrap().tx();
        let start = Instant::now();
        let slot = loop {
            tx.reclaim(|_| ());
            if let Some(slot) = tx.take() {
                break slot;
            }
            assert!(start.elapsed() < patience(), "no free slot");
            std::thread::yield_now();
        };
        tx.slot_mut(slot)[12..12 + frame.len()].copy_from_slice(frame);
        tx.push(slot, &VnetHdr::default(), frame.len()).unwrap();
        tx.publish();
    }

    /// Sends `frame` from the port `from`, and returns the receiving ports with the received
    /// frames. The function also waits until the switch has returned the sender's buffer.
    pub fn reach(&mut self, from: &str, frame: &[u8]) -> Vec<(&'static str, Vec<u8>)> {
        self.settle();
        self.send(from, frame);
        self.settled()
    }

    /// Waits until the switch has handled all sent frames, and discards all received frames.
    pub fn settle(&mut self) {
        self.settled();
    }

    fn settled(&mut self) -> Vec<(&'static str, Vec<u8>)> {
        let mut got = Vec::new();
        let start = Instant::now();
        loop {
            let mut busy = false;
            for driver in self.drivers.values_mut() {
                driver.tx().reclaim(|_| ());
                busy |= driver.tx().outstanding() > 0;
            }
            // The switch publishes frames at their destination before it returns the sender's
            // buffer.
            for (name, driver) in &mut self.drivers {
                driver.rx().recv(1024, |f| {
                    let mut bytes = Vec::new();
                    f.append_to(&mut bytes);
                    got.push((*name, bytes));
                });
            }
            if !busy {
                got.sort();
                return got;
            }
            assert!(start.elapsed() < patience(), "the switch does not return buffers");
            std::thread::yield_now();
        }
    }

    pub fn drops(&self, port: &str, reason: &str) -> u64 {
        let stats = self.host.stats(true).unwrap();
        let port = stats.ports.iter().find(|p| p.port == port).unwrap();
        port.drops.iter().find(|drop| drop.name == reason).map_or(0, |drop| drop.value)
    }

    pub fn fdb(&self, tenant: &str) -> usize {
        let filter = FdbFilter { tenant: Some(tenant.to_owned()), ..FdbFilter::default() };
        self.host.fdb(&filter).unwrap().len()
    }

    pub fn reload(&mut self, text: &str) -> Result<(), String> {
        std::fs::write(self.dir.join("host.toml"), localised(text, &self.dir)).unwrap();
        self.host.reload().map(|_| ()).map_err(|e| e.to_string())
    }

    pub fn check(&self) {
        let stats = self.host.stats(true).unwrap();
        assert_eq!(stats.violations, Vec::<String>::new());
    }
}

impl Drop for Bed {
    fn drop(&mut self) {
        self.drivers.clear();
        let _ = self.host.shutdown();
    }
}

fn localised(text: &str, dir: &std::path::Path) -> String {
    let dir = dir.display().to_string();
    text.replace("@/", &format!("{dir}/")).replace(
        "name = \"isolation\"",
        &format!("name = \"isolation\"\nsocket = \"{dir}/api\"\nstate_dir = \"{dir}/state\""),
    )
}

pub fn broadcast(from: MacAddr) -> Vec<u8> {
    let mut f = [MacAddr::BROADCAST.0, from.0].concat();
    f.extend([0x88, 0xb6]);
    f.resize(60, 7);
    f
}

pub fn tagged(frame: &[u8], vid: u16) -> Vec<u8> {
    let mut f = frame[..12].to_vec();
    f.extend([0x81, 0]);
    f.extend(vid.to_be_bytes());
    f.extend_from_slice(&frame[12..]);
    f
}

pub fn udp(from: MacAddr, to: MacAddr, src: &str, dst: &str) -> Vec<u8> {
    let mut f = [to.0, from.0].concat();
    f.extend([8, 0, 0x45, 0, 0, 46, 0, 0, 0, 0, 64, 17, 0, 0]);
    f.extend(src.parse::<std::net::Ipv4Addr>().unwrap().octets());
    f.extend(dst.parse::<std::net::Ipv4Addr>().unwrap().octets());
    let sum = penstock_dataplane::finish::sum(&f[14..34], 0);
    let sum = penstock_dataplane::finish::checksum(sum);
    f[24..26].copy_from_slice(&sum.to_be_bytes());
    f.extend([0, 7, 0, 9, 0, 26, 0, 0]);
    f.resize(60, 3);
    f
}

pub fn udp6(from: MacAddr, to: MacAddr, src: &str, dst: &str) -> Vec<u8> {
    let mut f = [to.0, from.0].concat();
    f.extend([0x86, 0xdd, 0x60, 0, 0, 0, 0, 16, 17, 64]);
    f.extend(src.parse::<std::net::Ipv6Addr>().unwrap().octets());
    f.extend(dst.parse::<std::net::Ipv6Addr>().unwrap().octets());
    f.extend([0, 7, 0, 9, 0, 16, 1, 1]);
    f.resize(70, 3);
    f
}

/// Builds an ARP request. `sender` is the hardware address in the request, and `from` is the
/// frame's source address.
pub fn arp(from: MacAddr, sender: MacAddr, src: &str, dst: &str) -> Vec<u8> {
    let mut f = [MacAddr::BROADCAST.0, from.0].concat();
    f.extend([8, 6, 0, 1, 8, 0, 6, 4, 0, 1]);
    f.extend(sender.0);
    f.extend(src.parse::<std::net::Ipv4Addr>().unwrap().octets());
    f.extend([0; 6]);
    f.extend(dst.parse::<std::net::Ipv4Addr>().unwrap().octets());
    f.resize(60, 0);
    f
}

/// Builds an unsolicited neighbour advertisement for `target`, from `fd00::1`.
pub fn nd_advertisement(from: MacAddr, target: &str) -> Vec<u8> {
    let mut f = vec![0x33, 0x33, 0, 0, 0, 1];
    f.extend(from.0);
    f.extend([0x86, 0xdd, 0x60, 0, 0, 0, 0, 32, 58, 255]);
    f.extend("fd00::1".parse::<std::net::Ipv6Addr>().unwrap().octets());
    f.extend("ff02::1".parse::<std::net::Ipv6Addr>().unwrap().octets());
    f.extend([136, 0, 0, 0, 0x20, 0, 0, 0]);
    f.extend(target.parse::<std::net::Ipv6Addr>().unwrap().octets());
    f.extend([2, 1]);
    f.extend(from.0);
    f
}
