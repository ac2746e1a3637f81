//! The built-in tick feed: 50,000 events with the shape of a real market open, the same for the same seed.
//!
//! The shape, over 660 seconds from one minute before the open: events per second with median 43, 90% below 175, 99%
//! below 420, a peak of 1,094, and 30 seconds with none; a third of all events in milliseconds that hold 10 or more,
//! up to 86. SPY has a third of the events, all trades; BAC, AIG and IBM quote as well, and bid and ask of a quote
//! share a millisecond.
//!
//! How it is made: the counts of the seconds are drawn from that distribution at even ranks, and laid out in time by
//! a score that is low before the open and wanders after it. Each second is cut into bursts, each burst into trades
//! and quotes until the shares of [`UNITS`] are used up.

use crate::feed::event::{Event, Kind};
use crate::feed::rng::Rng;

/// Events of the built-in feed.
pub const EVENTS: usize = 50_000;
/// The seconds that it spans.
pub const SECONDS: usize = 660;
/// The seed of the demo.
pub const SEED: u64 = 20_131_009;

/// 09:29:00 in milliseconds since midnight.
const START_MS: u64 = 34_140_000;
/// Seconds before the open, which are quiet.
const QUIET_SECONDS: usize = 60;
/// The most events of one millisecond.
const BURST_MAX: usize = 86;
/// From this size on a burst is a large one.
const BURST_LARGE: usize = 10;
/// Events in large bursts.
const LARGE_EVENTS: f64 = 0.34 * EVENTS as f64;
/// How often bursts of 1, 2, 3 ... 9 events come, among the small ones.
const SMALL_BURSTS: [u64; 9] = [7_029, 4_856, 957, 1_111, 378, 434, 206, 214, 108];
/// Events of a second by rank: (share of seconds below, events).
const SECOND_RANKS: [(f64, f64); 10] = [
    (0.0455, 0.5),
    (0.05, 1.0),
    (0.1, 6.0),
    (0.25, 21.0),
    (0.5, 43.0),
    (0.75, 86.0),
    (0.9, 175.0),
    (0.95, 272.0),
    (0.99, 420.0),
    (1.0, 1_094.0),
];

/// What a burst is made of: symbol, start price, whether it is a quote (two events), and how many there are.
struct Unit {
    symbol: usize,
    quote: bool,
    count: u64,
}

const SYMBOLS: [(&str, i64); 4] = [
    ("SPY", 1_657_000),
    ("BAC", 137_600),
    ("AIG", 477_400),
    ("IBM", 1_794_500),
];

/// Shares of the feed: SPY 33% (trades only), BAC 34%, AIG 25%, IBM 8%; trades 46%.
const UNITS: [Unit; 7] = [
    Unit {
        symbol: 0,
        quote: false,
        count: 16_600,
    },
    Unit {
        symbol: 1,
        quote: false,
        count: 4_500,
    },
    Unit {
        symbol: 1,
        quote: true,
        count: 6_300,
    },
    Unit {
        symbol: 2,
        quote: false,
        count: 1_200,
    },
    Unit {
        symbol: 2,
        quote: true,
        count: 5_600,
    },
    Unit {
        symbol: 3,
        quote: false,
        count: 860,
    },
    Unit {
        symbol: 3,
        quote: true,
        count: 1_520,
    },
];

const _: () = {
    let (mut events, mut i) = (0, 0);
    while i < UNITS.len() {
        events += UNITS[i].count * if UNITS[i].quote { 2 } else { 1 };
        i += 1;
    }
    assert!(events == EVENTS as u64);
};

/// All events of the feed, in time order.
#[must_use]
pub fn events(seed: u64) -> Vec<Event> {
    let mut rng = Rng::new(seed);
    let seconds = lay_out(&mut rng, second_counts());
    let bursts = cut(&mut rng, &seconds);
    fill(&mut rng, &bursts)
}

/// Events of each second, in rising order.
fn second_counts() -> Vec<usize> {
    let mut counts: Vec<usize> = (0..SECONDS)
        .map(|rank| count_at((rank as f64 + 1.0) / SECONDS as f64))
        .collect();
    // The ranks between the fixed points take up what is missing to the exact total, evenly.
    let (from, to) = (SECONDS * 55 / 100, SECONDS * 88 / 100);
    let mut rank = from;
    loop {
        let total: usize = counts.iter().sum();
        match total.cmp(&EVENTS) {
            std::cmp::Ordering::Less => counts[rank] += 1,
            std::cmp::Ordering::Greater => counts[rank] -= 1,
            std::cmp::Ordering::Equal => return counts,
        }
        rank = if rank + 1 == to { from } else { rank + 1 };
    }
}

/// Between the fixed ranks the logarithm of the count rises evenly.
fn count_at(rank: f64) -> usize {
    if rank < SECOND_RANKS[0].0 {
        return 0;
    }
    let above = SECOND_RANKS.iter().position(|&(at, _)| rank <= at + 1e-9);
    let above = above.unwrap_or(SECOND_RANKS.len() - 1).max(1);
    let ((r0, c0), (r1, c1)) = (SECOND_RANKS[above - 1], SECOND_RANKS[above]);
    let share = ((rank - r0) / (r1 - r0)).clamp(0.0, 1.0);
    (c0.ln() + share * (c1.ln() - c0.ln())).exp().round() as usize
}

/// Gives each second of the feed one of the counts: busy seconds follow busy ones.
fn lay_out(rng: &mut Rng, counts: Vec<usize>) -> Vec<usize> {
    let mut mood = 0.0;
    let mut scores: Vec<(f64, usize)> = (0..SECONDS)
        .map(|second| {
            mood = 0.6 * mood + 0.8 * rng.normal();
            let trend = if second < QUIET_SECONDS { -2.2 } else { 0.0 };
            (trend + mood, second)
        })
        .collect();
    scores.sort_by(|a, b| a.0.total_cmp(&b.0));
    let mut seconds = vec![0; SECONDS];
    for ((_, second), count) in scores.into_iter().zip(counts) {
        seconds[second] = count;
    }
    seconds
}

/// Cuts seconds into bursts: (millisecond, events), in time order.
fn cut(rng: &mut Rng, seconds: &[usize]) -> Vec<(u64, usize)> {
    let weight = |count: usize| count as f64 * (count as f64 / 300.0).powf(0.7).min(1.6);
    let scale = LARGE_EVENTS / seconds.iter().map(|&count| weight(count)).sum::<f64>();
    let busiest = seconds.iter().copied().max().unwrap_or(0);
    let mut bursts = Vec::new();
    // What one second could not place in large bursts goes over to the next.
    let mut large = 0.0;
    for (second, &count) in seconds.iter().enumerate() {
        let mut left = count;
        let mut sizes = Vec::new();
        large += weight(count) * scale;
        if count == busiest {
            sizes.push(BURST_MAX);
            left -= BURST_MAX;
            large -= BURST_MAX as f64;
        }
        while left >= BURST_LARGE && large >= BURST_LARGE as f64 {
            let size = large_burst(rng).min(left).min(large as usize);
            sizes.push(size);
            left -= size;
            large -= size as f64;
        }
        while left > 0 {
            let size = rng.weighted(&SMALL_BURSTS).map_or(1, |at| at + 1).min(left);
            sizes.push(size);
            left -= size;
        }
        let start = START_MS + second as u64 * 1_000;
        let mut places = places(rng, sizes.len());
        for size in sizes {
            let at = rng.below(places.len() as u64) as usize;
            bursts.push((start + places.swap_remove(at), size));
        }
    }
    bursts.sort_unstable();
    bursts
}

/// The size of a large burst: falling with the power 2.2 of the size.
fn large_burst(rng: &mut Rng) -> usize {
    const POWER: f64 = -1.2;
    let (low, high) = (
        (BURST_LARGE as f64).powf(POWER),
        (BURST_MAX as f64 + 1.0).powf(POWER),
    );
    let size = (low + rng.unit() * (high - low)).powf(1.0 / POWER);
    (size as usize).clamp(BURST_LARGE, BURST_MAX)
}

/// `count` different milliseconds of a second, in clusters.
fn places(rng: &mut Rng, count: usize) -> Vec<u64> {
    assert!(count <= 1_000, "a second has 1,000 milliseconds");
    let mut taken = [false; 1_000];
    let mut places = Vec::with_capacity(count);
    let mut at = rng.below(1_000);
    while places.len() < count {
        let near = rng.below(3) > 0;
        at = if near {
            at + 1 + rng.below(12)
        } else {
            rng.below(1_000)
        } % 1_000;
        while taken[at as usize] {
            at = (at + 1) % 1_000;
        }
        taken[at as usize] = true;
        places.push(at);
    }
    places
}

/// Fills bursts with trades and quotes until none are left.
fn fill(rng: &mut Rng, bursts: &[(u64, usize)]) -> Vec<Event> {
    let mut left: Vec<u64> = UNITS.iter().map(|unit| unit.count).collect();
    let mut market = Market::new();
    let mut events = Vec::with_capacity(EVENTS);
    // A place that only a quote is left for: the next burst gets it.
    let mut carried = 0;
    for &(time_ms, size) in bursts {
        let mut room = size + carried;
        let mut last: Option<usize> = None;
        while room > 0 {
            let fits = |unit: usize, left: &[u64]| left[unit] > 0 && (room > 1 || !UNITS[unit].quote);
            let again = last.filter(|&unit| fits(unit, &left) && rng.unit() < 0.7);
            let weights: Vec<u64> = (0..UNITS.len())
                .map(|unit| if fits(unit, &left) { left[unit] } else { 0 })
                .collect();
            let Some(unit) = again.or_else(|| rng.weighted(&weights)) else {
                break;
            };
            left[unit] -= 1;
            last = Some(unit);
            room -= market.trade_or_quote(rng, &UNITS[unit], time_ms, &mut events);
        }
        carried = room;
    }
    // Whatever found no room ends the feed.
    let end_ms = bursts.last().map_or(START_MS, |&(time_ms, _)| time_ms);
    for (unit, left) in UNITS.iter().zip(left) {
        for _ in 0..left {
            market.trade_or_quote(rng, unit, end_ms, &mut events);
        }
    }
    events
}

/// Where each share's price stands.
struct Market {
    prices: [i64; SYMBOLS.len()],
}

impl Market {
    fn new() -> Market {
        Market {
            prices: SYMBOLS.map(|(_, price)| price),
        }
    }

    /// Appends one event or two, and says how many.
    fn trade_or_quote(&mut self, rng: &mut Rng, unit: &Unit, time_ms: u64, events: &mut Vec<Event>) -> usize {
        const CENT: i64 = 100;
        let price = &mut self.prices[unit.symbol];
        if rng.below(20) == 0 {
            *price += (rng.below(3) as i64 - 1) * CENT;
        }
        let mut event = |kind, price_1e4| {
            let lots_max = 1 + rng.below(60);
            let lots = 1 + rng.below(lots_max);
            events.push(Event {
                time_ms,
                symbol: SYMBOLS[unit.symbol].0.to_owned(),
                kind,
                price_1e4,
                size: lots * 100,
            });
        };
        if unit.quote {
            event(Kind::Bid, *price - CENT);
            event(Kind::Ask, *price + CENT);
            2
        } else {
            event(Kind::Trade, *price);
            1
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use super::*;
    use crate::feed::csv;

    /// The figures that a feed is compared by.
    #[derive(Debug)]
    struct Shape {
        median: usize,
        p90: usize,
        p99: usize,
        peak: usize,
        empty: usize,
        in_large_bursts: f64,
        largest_burst: usize,
        trades: f64,
        shares: [f64; 4],
    }

    fn shape(events: &[Event]) -> Shape {
        let mut seconds = vec![0; SECONDS];
        let mut millis: HashMap<u64, usize> = HashMap::new();
        for event in events {
            seconds[((event.time_ms - START_MS) / 1_000) as usize] += 1;
            *millis.entry(event.time_ms).or_default() += 1;
        }
        seconds.sort_unstable();
        let at = |q: f64| seconds[(q * SECONDS as f64) as usize];
        let share = |n: usize| n as f64 / events.len() as f64;
        Shape {
            median: at(0.5),
            p90: at(0.9),
            p99: at(0.99),
            peak: seconds[SECONDS - 1],
            empty: seconds.iter().filter(|&&n| n == 0).count(),
            in_large_bursts: share(millis.values().filter(|&&n| n >= BURST_LARGE).sum()),
            largest_burst: millis.values().copied().max().unwrap_or(0),
            trades: share(events.iter().filter(|e| e.kind == Kind::Trade).count()),
            shares: SYMBOLS.map(|(name, _)| share(events.iter().filter(|e| e.symbol == name).count())),
        }
    }

    /// Within a tenth of the counts, and two points of the shares.
    fn check(events: &[Event]) {
        let shape = shape(events);
        let near = |have: usize, want: f64| (have as f64 - want).abs() <= (want * 0.1).max(3.0);
        let close = |have: f64, want: f64| (have - want).abs() <= 0.02;
        assert!(
            near(shape.median, 43.0) && near(shape.p90, 175.0) && near(shape.p99, 420.0),
            "{shape:?}"
        );
        assert!(near(shape.peak, 1_094.0) && near(shape.empty, 30.0), "{shape:?}");
        assert!(
            close(shape.in_large_bursts, 0.34) && shape.largest_burst == 86,
            "{shape:?}"
        );
        assert!(close(shape.trades, 0.463), "{shape:?}");
        for (have, want) in shape.shares.iter().zip([0.333, 0.342, 0.247, 0.078]) {
            assert!(close(*have, want), "{shape:?}");
        }
        assert!(events.is_sorted_by_key(|event| event.time_ms));
        let spy = events.iter().filter(|event| event.symbol == "SPY");
        assert!(spy.clone().all(|event| event.kind == Kind::Trade));
        for (at, bid) in events
            .iter()
            .enumerate()
            .filter(|(_, event)| event.kind == Kind::Bid)
        {
            let ask = events[at + 1..]
                .iter()
                .find(|e| e.kind == Kind::Ask && e.symbol == bid.symbol);
            assert_eq!(
                ask.map(|ask| ask.time_ms),
                Some(bid.time_ms),
                "a quote is one moment"
            );
        }
    }

    #[test]
    fn it_has_the_shape_of_a_market_open() {
        for seed in [SEED, 1, 2, 3] {
            let events = events(seed);
            assert_eq!(events.len(), EVENTS, "seed {seed}");
            check(&events);
        }
    }

    #[test]
    fn a_seed_is_one_feed() {
        assert_eq!(events(7), events(7));
        assert_ne!(events(7), events(8));
    }

    #[test]
    fn busy_seconds_follow_busy_ones() {
        let mut seconds = vec![0.0; SECONDS];
        for event in events(SEED) {
            seconds[((event.time_ms - START_MS) / 1_000) as usize] += 1.0;
        }
        let logs: Vec<f64> = seconds[QUIET_SECONDS..].iter().map(|n: &f64| n.ln_1p()).collect();
        let mean = logs.iter().sum::<f64>() / logs.len() as f64;
        let variance: f64 = logs.iter().map(|x| (x - mean).powi(2)).sum();
        let lagged: f64 = logs.windows(2).map(|w| (w[0] - mean) * (w[1] - mean)).sum();
        assert!(lagged / variance > 0.3, "{}", lagged / variance);
    }

    /// The recorded feed itself passes the same check, where it is at hand.
    #[test]
    fn the_recorded_open_has_this_shape() {
        let file = concat!(
            env!("CARGO_MANIFEST_DIR"),
            "/../../shared/data/us-equities-20131009-open.csv.gz"
        );
        if !std::path::Path::new(file).exists() {
            return;
        }
        let feed = csv::open(file.as_ref()).expect("it can be opened");
        let events: Vec<Event> = feed.collect::<Result<_, _>>().expect("it can be read");
        assert_eq!(events.len(), 49_452);
        let trades = events.iter().filter(|event| event.kind == Kind::Trade).count();
        assert_eq!(trades, 22_908);
        check(&events);
    }
}
