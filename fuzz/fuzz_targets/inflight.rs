//! [`penstock_fuzz::inflight`] under libFuzzer: `scripts/fuzz.sh inflight`.
#![forbid(unsafe_code)]
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| penstock_fuzz::inflight::run(data));
