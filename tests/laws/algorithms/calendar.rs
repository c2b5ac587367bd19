//! Calendar windows: against vectors of another language's standard library, and laws over a century.

use std::fmt::Write as _;
use std::time::Duration;

use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::select;
use tower_ratelimit::{
    AcquireOptions, Calendar, Clock, DynLimit, FixedWindow, Limit, ManualClock, Memory, Timestamp, Verdict, Weekday,
};

use crate::cases;

/// Windows that Python's `zoneinfo` has computed, from a definition of its own: a search for the first instant of a date.
const VECTORS: &str = include_str!("calendar.tsv");

const HOUR: u64 = 3_600_000_000;
const WEEKDAYS: [Weekday; 7] = [
    Weekday::Monday,
    Weekday::Tuesday,
    Weekday::Wednesday,
    Weekday::Thursday,
    Weekday::Friday,
    Weekday::Saturday,
    Weekday::Sunday,
];

/// Zones that skip midnight or a day, turn the clock back over midnight, or are far from UTC.
const ZONES: [&str; 14] = [
    "Africa/Cairo",
    "America/Havana",
    "America/New_York",
    "America/Santiago",
    "America/St_Johns",
    "Antarctica/Casey",
    "Asia/Beirut",
    "Asia/Gaza",
    "Asia/Tehran",
    "Australia/Lord_Howe",
    "Europe/Berlin",
    "Pacific/Apia",
    "Pacific/Chatham",
    "Pacific/Kiritimati",
];

fn window(calendar: &Calendar, at: u64) -> (u64, u64) {
    let window = calendar.window_at(Timestamp::from_micros(at));
    (window.start.as_micros(), window.end.as_micros())
}

fn minutes_of(zone: &str) -> Option<i16> {
    let (hours, minutes) = zone.strip_prefix(['+', '-'])?.split_once(':')?;
    let minutes = hours.parse::<i16>().ok()? * 60 + minutes.parse::<i16>().ok()?;
    Some(if zone.starts_with('-') { -minutes } else { minutes })
}

fn calendar(kind: &str, anchor: u8, zone: &str) -> Calendar {
    let calendar = match kind {
        "day" => Calendar::daily(),
        "week" => Calendar::weekly_from(WEEKDAYS[usize::from(anchor)]),
        "month" => Calendar::monthly_on(anchor),
        "year" => Calendar::yearly(),
        _ => panic!("{kind}"),
    };
    match minutes_of(zone) {
        Some(minutes) => calendar.utc_offset_minutes(minutes),
        None => calendar.zone(zone).expect("a zone"),
    }
}

#[test]
fn windows_are_those_of_the_vectors() {
    let (mut wrong, mut count) = (String::new(), 0);
    for line in VECTORS.lines().filter(|line| !line.starts_with("kind")) {
        let fields: Vec<_> = line.split('\t').collect();
        let &[kind, anchor, zone, now, start, end, _hours] = &fields[..] else { panic!("{line}") };
        let number = |text: &str| text.parse::<i64>().expect("a number");
        let (start, end) = (number(start), number(end));
        let calendar = calendar(kind, anchor.parse().expect("an anchor"), zone);
        let found = window(&calendar, now.parse().expect("a time"));
        count += 1;
        // A start before 1970 is 0.
        if found != (start.max(0).cast_unsigned(), end.cast_unsigned()) {
            writeln!(wrong, "{line}: {found:?}").expect("a string grows");
        }
    }
    assert!(wrong.is_empty(), "{wrong}");
    println!("{count} vectors");
}

/// The windows of each calendar tile the time from 2000 to 2100, and a window has its length of days, give or take two.
fn assert_tiles(calendar: &Calendar, from: u64, windows: usize, days: (u64, u64)) {
    let (mut start, mut end) = window(calendar, from);
    assert!(start <= from && from < end, "{calendar}: {from} is not in {start}..{end}");
    for _ in 0..windows {
        let next = window(calendar, end);
        for inside in [start, start + 1, start.midpoint(end), end - 1] {
            assert_eq!(window(calendar, inside), (start, end), "{calendar}: the window of {inside}");
        }
        assert_eq!(window(calendar, start - 1).1, start, "{calendar}: the window before {start}");
        assert_eq!(next.0, end, "{calendar}: the window after {end}");
        let hours = (end - start) / HOUR;
        assert!(hours + 25 >= days.0 * 24 && hours <= days.1 * 24 + 25, "{calendar}: {hours} hours from {start}");
        (start, end) = next;
    }
}

fn kinds() -> impl Strategy<Value = (Calendar, (u64, u64))> {
    prop_oneof![
        Just((Calendar::daily(), (1, 1))),
        select(&WEEKDAYS[..]).prop_map(|first| (Calendar::weekly_from(first), (7, 7))),
        (1u8..=31).prop_map(|day| (Calendar::monthly_on(day), (28, 31))),
        Just((Calendar::yearly(), (365, 366))),
    ]
}

proptest! {
    #![proptest_config(cases(300))]

    #[test]
    fn windows_tile_the_time_of_each_zone(
        (calendar, days) in kinds(),
        zone in prop_oneof![(-1439i16..=1439).prop_map(Ok), select(&ZONES[..]).prop_map(Err)],
        from in 946_684_800_000_000u64..4_102_444_800_000_000,
    ) {
        let calendar = match zone {
            Ok(minutes) => calendar.utc_offset_minutes(minutes),
            Err(name) => calendar.zone(name).expect("a zone"),
        };
        assert_tiles(&calendar, from, 40, days);
    }
}

/// Counts the days of four centuries by the rule of leap years. Months and years begin where the count says.
#[test]
fn months_and_years_agree_with_a_count_of_days() {
    let is_leap = |year: u64| year.is_multiple_of(4) && (!year.is_multiple_of(100) || year.is_multiple_of(400));
    let mut day = 0;
    for year in 1970..2370 {
        let new_year = day;
        let lengths = [31, if is_leap(year) { 29 } else { 28 }, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31];
        for length in lengths {
            for anchor in [1, 15, 28, 29, 30, 31] {
                let first = (day + anchor.min(length) - 1) * 24 * HOUR;
                let calendar = Calendar::monthly_on(u8::try_from(anchor).expect("a day"));
                assert_eq!(window(&calendar, first).0, first, "{calendar} in {year}");
                assert_eq!(first.checked_sub(1).map_or(first, |before| window(&calendar, before).1), first);
            }
            day += length;
        }
        let end = day * 24 * HOUR;
        assert_eq!(window(&Calendar::yearly(), end - 1), (new_year * 24 * HOUR, end), "{year}");
    }
}

/// Each day, each week, each month and each year from 2000 to 2100, of each zone: ten minutes.
#[test]
#[ignore = "exhaustive: cargo test --release --test algorithms every_window_tiles -- --ignored"]
fn every_window_tiles() {
    let offsets = ["+00:00", "-23:59", "+23:59", "-05:30"];
    let anchors = |kind| match kind {
        "week" => 0..=6,
        "month" => 1..=31,
        _ => 0..=0,
    };
    for zone in ZONES.into_iter().chain(offsets) {
        for (kind, count, days) in
            [("day", 36_525, (1, 1)), ("week", 5_218, (7, 7)), ("month", 1_200, (28, 31)), ("year", 100, (365, 366))]
        {
            for anchor in anchors(kind) {
                assert_tiles(&calendar(kind, anchor, zone), 946_684_800_000_000, count, days);
            }
        }
    }
}

/// No time makes a calendar panic: a custom clock may return any.
#[test]
fn window_of_any_time_contains_it() {
    for calendar in [Calendar::daily(), Calendar::monthly_on(31), Calendar::yearly()] {
        for calendar in [calendar, calendar.utc_offset_minutes(-1439), calendar.zone("Europe/Berlin").expect("a zone")]
        {
            for at in [0, 1, 1 << 52, Timestamp::MAX.as_micros(), 1 << 62] {
                let (start, end) = window(&calendar, at);
                assert!(start <= at && at < end, "{calendar}: {at} is not in {start}..{end}");
            }
            let _ = window(&calendar, u64::MAX);
        }
    }
}

#[test]
fn invalid_calendar_names_the_field() {
    let text = |result: Result<Calendar, tower_ratelimit::Error>| result.expect_err("an error").to_string();
    for day in [0, 32, 255] {
        assert!(text(Calendar::try_monthly_on(day)).contains("`anchor`"));
    }
    for minutes in [1440, -1440, i16::MIN, i16::MAX] {
        assert!(text(Calendar::daily().try_utc_offset_minutes(minutes)).contains("`zone`"));
    }
    assert!(
        text(Calendar::daily().zone("Europe/Atlantis")).contains("`zone` is unknown: the database has no \"Europe/Atl")
    );
    assert_eq!(Calendar::monthly_on(15).utc_offset_minutes(-330).to_string(), "month from 15, -05:30");
    assert_eq!(
        Calendar::weekly().zone("europe/berlin").expect("a zone").to_string(),
        "week from Monday, Europe/Berlin"
    );
}

#[derive(Clone, Copy, Debug)]
enum Step {
    Acquire(u64),
    /// Until the end of the window, and some microseconds.
    UntilEnd(i64),
    Hours(u64),
    Back(u64),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        5 => (1u64..5).prop_map(Step::Acquire),
        2 => (-1i64..=1).prop_map(Step::UntilEnd),
        2 => (0u64..900).prop_map(Step::Hours),
        1 => (0u64..40).prop_map(Step::Back),
    ];
    vec(step, 1..60)
}

proptest! {
    #![proptest_config(cases(150))]

    /// Each window admits its limit, and a denial, the reset and the window are those of the calendar.
    #[test]
    fn calendar_windows_admit_their_limit_and_name_their_end(
        (calendar, _) in kinds(),
        zone in prop_oneof![(-1439i16..=1439).prop_map(Ok), select(&ZONES[..]).prop_map(Err)],
        limit in 1u64..9,
        from in 946_684_800_000_000u64..4_102_444_800_000_000,
        steps in steps(),
    ) {
        let calendar = match zone {
            Ok(minutes) => calendar.utc_offset_minutes(minutes),
            Err(name) => calendar.zone(name).expect("a zone"),
        };
        let clock = ManualClock::at(Timestamp::from_micros(from));
        let limiter = Memory::builder(FixedWindow::calendar(limit, calendar)).clock(clock.clone()).build().expect("a limit");
        // The window of the last charge, and its usage.
        let mut charged = ((0, 0), 0);
        for step in steps {
            let now = clock.now().as_micros();
            match step {
                Step::UntilEnd(more) => {
                    let end = window(&calendar, now).1;
                    clock.set(Timestamp::from_micros(end.saturating_add_signed(more)));
                }
                Step::Hours(hours) => clock.set(Timestamp::from_micros(now + hours * HOUR + hours)),
                // The last charge's time counts, if it is at most in the next window, and at most a window ahead.
                Step::Back(minutes) => clock.set(Timestamp::from_micros(now - minutes * HOUR / 60)),
                Step::Acquire(cost) => {
                    let decision = limiter.check("key", AcquireOptions::cost(cost));
                    let own = window(&calendar, now);
                    let last = charged.0;
                    let is_ahead = now < last.0 && now >= window(&calendar, last.0 - 1).0;
                    let (present, mut used) = if is_ahead || own == last { charged } else { (own, 0) };
                    let until_end = Duration::from_micros(present.1 - now);
                    let expected = if cost > limit {
                        Verdict::ExceedsLimit
                    } else if used + cost <= limit {
                        used += cost;
                        charged = (present, used);
                        Verdict::Allowed
                    } else {
                        Verdict::Denied { retry_after: until_end }
                    };
                    prop_assert_eq!(decision.verdict(), expected, "{} at {}: {:?} of {}", calendar, now, present, used);
                    let snapshot = decision.most_restrictive().expect("a limit").snapshot();
                    prop_assert_eq!(snapshot.window, Some(Duration::from_micros(present.1 - present.0)));
                    prop_assert_eq!(snapshot.remaining, limit - used);
                    prop_assert_eq!(snapshot.reset, if used > 0 { until_end } else { Duration::ZERO });
                }
            }
        }
    }
}

/// "The usage counts until the present window ends by the calendar before or by the new one, whichever is earlier."
#[test]
fn usage_counts_after_a_change_of_calendar_until_the_earlier_end() {
    let day = |day: u64| Timestamp::from_micros((20_454 + day - 1) * 24 * HOUR); // Of January 2026.
    for (before, after, change, ends) in [
        (Calendar::monthly(), Calendar::monthly_on(15), 10, 15),
        (Calendar::monthly(), Calendar::monthly_on(15), 20, 32),
        (Calendar::daily(), Calendar::monthly(), 20, 21),
        (Calendar::monthly_on(15), Calendar::weekly(), 22, 26),
    ] {
        let clock = ManualClock::at(day(change));
        let limit = |calendar| vec![DynLimit::new(Limit::new("limit", FixedWindow::calendar(9, calendar)))];
        let limiter: Memory<str, Vec<DynLimit<str>>> =
            Memory::builder(limit(before)).clock(clock.clone()).build().expect("a limit");
        let check = |cost| limiter.check("key", AcquireOptions::cost(cost));
        assert!(check(7).is_allowed());
        limiter.replace(limit(after)).expect("a limit");
        assert_eq!(check(0).remaining(), Some(2), "{before} to {after}");
        assert!(check(1).is_allowed());
        clock.set(Timestamp::from_micros(day(ends).as_micros() - 1));
        assert_eq!(check(2).retry_after(), Some(Duration::from_micros(1)), "{before} to {after}");
        clock.set(day(ends));
        // What was admitted since the change counts until the new calendar's window ends.
        let is_same = window(&after, day(change).as_micros()) == window(&after, day(ends).as_micros());
        assert_eq!(check(0).remaining(), Some(if is_same { 8 } else { 9 }), "{before} to {after}");
    }
}
