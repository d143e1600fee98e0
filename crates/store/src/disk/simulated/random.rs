//! Random numbers from a seed.

/// A small generator (splitmix64): the same seed gives the same run on every machine.
#[derive(Debug, Clone)]
pub struct SimRandom(u64);

impl SimRandom {
    /// A generator with the given seed.
    pub fn new(seed: u64) -> Self {
        Self(seed ^ 0x5851_f42d_4c95_7f2d)
    }

    /// A random number of 64 bits.
    pub fn next_u64(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// A random number below `limit`, and 0 for a limit of 0.
    pub fn below(&mut self, limit: u64) -> u64 {
        if limit == 0 { 0 } else { self.next_u64() % limit }
    }

    /// Returns `true` with a probability of `thousandths` in a thousand.
    pub fn chance(&mut self, thousandths: u64) -> bool {
        self.below(1000) < thousandths
    }
}
