//! Runs fuzz targets on mutated inputs in every test run, without coverage and with any compiler.
//! Equal seeds give equal inputs.

use std::path::{Path, PathBuf};

/// Maximum length of an input in bytes.
const LEN_MAX: usize = 4096;
/// Byte values at which faulty checks of lengths and indices often fail.
const NOTABLE: [u8; 12] = [0, 1, 2, 4, 12, 16, 0x3f, 0x40, 0x7f, 0x80, 0xfe, 0xff];

/// A xorshift generator (Marsaglia, 2003).
#[derive(Clone, Debug)]
pub struct Rng(u64);

impl Rng {
    /// Creates a generator of random numbers; any seed is valid.
    #[must_use]
    pub const fn new(seed: u64) -> Self {
        Self(seed | 1)
    }

    /// The next number.
    pub const fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    /// A number below `n`; 0 if `n` is 0.
    pub fn below(&mut self, n: usize) -> usize {
        usize::try_from(self.next() >> 16).unwrap_or(0).checked_rem(n).unwrap_or(0)
    }

    /// The low byte of the next number.
    pub fn byte(&mut self) -> u8 {
        self.next().to_be_bytes()[2]
    }
}

/// Returns the directory of a target's corpus.
#[must_use]
pub fn corpus_dir(target: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("corpus").join(target)
}

/// Reads the inputs in a target's corpus, sorted by file name.
///
/// # Errors
/// Returns an error if the corpus's directory or a file in it cannot be read.
pub fn corpus(target: &str) -> std::io::Result<Vec<(String, Vec<u8>)>> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(corpus_dir(target))? {
        let path = entry?.path();
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        found.push((name, std::fs::read(path)?));
    }
    found.sort();
    Ok(found)
}

/// Applies one to eight random changes to an input, and sometimes inserts a part of another input.
pub fn mutate(rng: &mut Rng, input: &mut Vec<u8>, other: &[u8]) {
    for _ in 0..=rng.below(8) {
        let at = rng.below(input.len() + 1);
        match rng.below(7) {
            0 => input.insert(at, rng.byte()),
            1 if at < input.len() => {
                input.remove(at);
            }
            2 => input.truncate(at),
            3 => {
                let from = rng.below(other.len());
                let to = (from + 1 + rng.below(64)).min(other.len());
                input.splice(at..at, other[from.min(to)..to].iter().copied());
            }
            4 => {
                let to = (at + 1 + rng.below(32)).min(input.len());
                let again: Vec<u8> = input[at.min(to)..to].to_vec();
                input.splice(at..at, again);
            }
            5 => {
                let notable = NOTABLE[rng.below(NOTABLE.len())];
                if let Some(byte) = input.get_mut(at) {
                    *byte = notable;
                }
            }
            _ => {
                let bit = rng.below(8);
                if let Some(byte) = input.get_mut(at) {
                    *byte ^= 1 << bit;
                }
            }
        }
    }
    input.truncate(LEN_MAX);
}

/// Runs a target on its corpus and on `mutated` mutated inputs, and returns the number of inputs.
/// Writes a failing input to a file, prints the file's name and then panics.
///
/// # Errors
/// Returns an error if the target's corpus cannot be read.
pub fn run(target: super::Target, mutated: usize, seed: u64) -> std::io::Result<usize> {
    let (name, function) = target;
    let corpus = corpus(name)?;
    for (file, input) in &corpus {
        guarded(name, file, input, function);
    }
    let mut rng = Rng::new(seed);
    let empty = (String::new(), Vec::new());
    let pick = |rng: &mut Rng| corpus.get(rng.below(corpus.len())).unwrap_or(&empty);
    for _ in 0..mutated {
        let mut input = pick(&mut rng).1.clone();
        let other = &pick(&mut rng).1;
        mutate(&mut rng, &mut input, other);
        guarded(name, "mutated", &input, function);
    }
    Ok(corpus.len() + mutated)
}

fn guarded(target: &str, from: &str, input: &[u8], function: fn(&[u8])) {
    let outcome = std::panic::catch_unwind(|| function(input));
    if let Err(panic) = outcome {
        let sum = input.iter().fold(0_u64, |n, b| n.wrapping_mul(31).wrapping_add(u64::from(*b)));
        let file = std::env::temp_dir().join(format!("penstock-fuzz-{target}-{sum:016x}"));
        let kept = std::fs::write(&file, input).is_ok();
        eprintln!("{target}: {from} fails; the input is in {} ({kept})", file.display());
        std::panic::resume_unwind(panic);
    }
}
