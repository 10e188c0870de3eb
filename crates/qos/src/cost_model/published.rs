//! Coefficients that a paper states, for what a host cannot measure.
//!
//! **Source.** C2QoS §III-C, Fig. 6: four VMs on one NUMA node take 1.14 times the cycles of one;
//! two I/O cores 1.47 times those of one, "mainly due to competition for locks"; a VM on another
//! node 1.4 times. Its Fig. 6(b) has further numbers of VMs only as a curve, which is not read off
//! here: beyond 4 VMs the factor stays.

/// (VMs, factor).
pub const VMS_PUBLISHED: [(u32, f64); 2] = [(1, 1.0), (4, 1.14)];
/// (I/O cores, factor).
pub const CORES_PUBLISHED: [(u32, f64); 2] = [(1, 1.0), (2, 1.47)];
/// For memory on another NUMA node.
pub const NUMA_PUBLISHED: f64 = 1.4;
