//! A small generator of numbers that are the same for the same seed on every machine and in every version.

/// SplitMix64 (Steele, Lea, Flood: Fast Splittable Pseudorandom Number Generators, 2014).
#[derive(Debug, Clone)]
pub struct Rng {
    state: u64,
}

impl Rng {
    /// The generator of a seed.
    #[must_use]
    pub fn new(seed: u64) -> Rng {
        Rng { state: seed }
    }

    /// The next 64 bits.
    pub fn bits(&mut self) -> u64 {
        self.state = self.state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.state ^ (self.state >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// A number in `0..n`; 0 for an empty range. The bias is below n / 2^64.
    pub fn below(&mut self, n: u64) -> u64 {
        ((u128::from(self.bits()) * u128::from(n)) >> 64) as u64
    }

    /// A number in `[0, 1)`.
    pub fn unit(&mut self) -> f64 {
        (self.bits() >> 11) as f64 / (1u64 << 53) as f64
    }

    /// About normal, mean 0 and deviation 1: the sum of twelve uniform numbers.
    pub fn normal(&mut self) -> f64 {
        (0..12).map(|_| self.unit()).sum::<f64>() - 6.0
    }

    /// An index, drawn in proportion to the weights; `None` when they are all 0.
    pub fn weighted(&mut self, weights: &[u64]) -> Option<usize> {
        let mut at = self.below(weights.iter().sum());
        weights.iter().position(|&weight| {
            let hit = at < weight;
            at = at.saturating_sub(weight);
            hit
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_the_same_everywhere() {
        let mut rng = Rng::new(1_234_567);
        assert_eq!(
            rng.bits(),
            6_457_827_717_110_365_317,
            "the published first value of this seed"
        );
    }

    #[test]
    fn draws_stay_in_bounds() {
        let mut rng = Rng::new(1);
        assert!((0..1_000).all(|_| rng.below(7) < 7));
        assert!((0..1_000).all(|_| (0.0..1.0).contains(&rng.unit())));
        assert_eq!(rng.weighted(&[0, 0]), None);
        assert!((0..1_000).all(|_| rng.weighted(&[0, 3, 0]) == Some(1)));
    }
}
