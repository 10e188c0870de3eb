//! Coefficients from the literature, for what a host cannot measure.
//!
//! C2QoS §III-C, Fig. 6: four VMs on one NUMA node take 1.14 times the cycles of one VM. Two I/O
//! cores take 1.47 times those of one, "mainly due to competition for locks". A VM on another node
//! takes 1.4 times. Fig. 6(b) shows other numbers of VMs only as a curve, which is not used here:
//! the factor stays constant beyond 4 VMs.

/// Factor by number of VMs on the host.
pub const VMS_PUBLISHED: [(u32, f64); 2] = [(1, 1.0), (4, 1.14)];
/// Factor by number of I/O cores.
pub const CORES_PUBLISHED: [(u32, f64); 2] = [(1, 1.0), (2, 1.47)];
/// Factor if the VM's memory is on another NUMA node than the core.
pub const NUMA_PUBLISHED: f64 = 1.4;
