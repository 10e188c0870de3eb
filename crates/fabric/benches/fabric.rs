//! Measures how long two operations take in fabrics of several sizes: replacing a tenant at 90 %
//! used slots, and a pass of queue binding.
#![allow(missing_docs, clippy::unwrap_used, reason = "a benchmark")]

use criterion::{BenchmarkId, Criterion, criterion_group, criterion_main};
use penstock_fabric::hose::Hose;
use penstock_fabric::queue_binding::{Binding, Candidate, Mode, Settings};
use penstock_fabric::tenant_placement::{Datacenter, Policy, Request, TenantSlot};
use penstock_fabric::topology::Regular;
use penstock_units::BitsPerSecond;

/// Linear congruential generator of random numbers with Knuth's constants.
struct Draws(u64);

impl Draws {
    fn below(&mut self, limit: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        (self.0 >> 33) % limit
    }

    fn request(&mut self) -> Request {
        let vms = u32::try_from(1 + self.below(97)).unwrap();
        let rate = [10, 20, 50, 100][usize::try_from(self.below(4)).unwrap()];
        let hose = Hose::homogeneous(vms, BitsPerSecond(rate * 1_000_000)).unwrap();
        Request::new(hose).most_per_server(17)
    }
}

fn loaded(k: u32, draws: &mut Draws) -> (Datacenter, Vec<TenantSlot>) {
    let rates = (BitsPerSecond(10_000_000_000), BitsPerSecond(40_000_000_000));
    let tree = Regular::fat_tree(k, 100, rates, (k / 2, k / 2)).unwrap().build().unwrap();
    let wanted = tree.slots_all() * 9 / 10;
    let mut datacenter = Datacenter::new(tree, 0, Policy::default()).unwrap();
    let (mut taken, mut slots) = (0, Vec::new());
    while taken < wanted {
        let request = draws.request();
        slots.push(datacenter.try_place(&request).unwrap());
        taken += u64::from(request.hose.vms());
    }
    (datacenter, slots)
}

fn fabric(c: &mut Criterion) {
    let mut place = c.benchmark_group("leave_and_come");
    for k in [8, 16, 32] {
        let mut draws = Draws(1);
        let (mut datacenter, mut slots) = loaded(k, &mut draws);
        place.bench_function(BenchmarkId::from_parameter(k * k * k / 4), |b| {
            b.iter(|| {
                let leaver = usize::try_from(draws.below(slots.len() as u64)).unwrap();
                datacenter.remove(slots.swap_remove(leaver));
                slots.extend(datacenter.try_place(&draws.request()));
            });
        });
    }
    place.finish();
    let mut pass = c.benchmark_group("binding_pass");
    for k in [8, 16, 32] {
        let mut draws = Draws(1);
        let (datacenter, _) = loaded(k, &mut draws);
        let topology = datacenter.topology();
        let settings = Settings::new(Mode::PerEgressMap);
        let mut binding = Binding::new(settings, topology.links()).unwrap();
        pass.bench_function(BenchmarkId::from_parameter(k * k * k / 4), |b| {
            b.iter(|| {
                let candidate = |(tenant, t)| {
                    let t: &penstock_fabric::tenant_placement::Tenant = t;
                    let links = t.placement.entry.links.as_slice();
                    Candidate {
                        tenant,
                        score: draws.below(1_000_000),
                        links,
                        movable: true,
                        shares: false,
                    }
                };
                let tenants: Vec<_> = datacenter.tenants().map(candidate).collect();
                binding.pass(topology, &tenants)
            });
        });
    }
    pass.finish();
}

criterion_group!(benches, fabric);
criterion_main!(benches);
