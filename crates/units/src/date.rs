/// Returns the year, month and day of a Unix time in seconds, in UTC.
///
/// Source: Howard Hinnant, "chrono-Compatible Low-Level Date Algorithms", `civil_from_days`.
#[must_use]
pub const fn utc_date(unix_s: u64) -> (u64, u64, u64) {
    // A year begins in March, so that a leap day is its last day. An era has 400 years.
    let days = unix_s / 86_400 + 719_468;
    let day_of_era = days % 146_097;
    let leap_days = day_of_era / 1_460 - day_of_era / 36_524 + day_of_era / 146_096;
    let year_of_era = (day_of_era - leap_days) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    // 0 is March.
    let month = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * month + 2) / 5 + 1;
    let year = days / 146_097 * 400 + year_of_era;
    if month < 10 { (year, month + 3, day) } else { (year + 1, month - 9, day) }
}

#[cfg(test)]
mod tests {
    use super::utc_date;

    #[test]
    fn dates_are_those_of_the_calendar() {
        for (unix_s, date) in [
            (0, (1970, 1, 1)),
            (951_782_400, (2000, 2, 29)),
            (951_868_799, (2000, 2, 29)),
            (951_868_800, (2000, 3, 1)),
            (1_796_000_000, (2026, 11, 30)),
            (1_798_761_599, (2026, 12, 31)),
            (1_798_761_600, (2027, 1, 1)),
            (4_107_542_400, (2100, 3, 1)),
        ] {
            assert_eq!(utc_date(unix_s), date, "{unix_s}");
        }
        // Each day follows the day before.
        for day in 1..40_000_u64 {
            let ((_, _, before), (_, month, after)) =
                (utc_date((day - 1) * 86_400), utc_date(day * 86_400));
            assert!(after == before + 1 || (after == 1 && before >= 28), "{day}: month {month}");
        }
    }
}
