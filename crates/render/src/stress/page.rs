//! The report as a page.

use super::{
    StressReport, VERDICT_HEADS, WORKLOAD_HEADS, headline, mismatch_lines, reading_lines, subject, verdict_rows,
    workload_rows,
};
use crate::page::{escape, page, table};

/// The page. It loads nothing and runs nothing.
pub fn stress_html(report: &StressReport) -> String {
    let title = format!("Stress test: {}", report.device);
    let findings = &report.findings;
    let class = if report.passed() { "" } else { " class=\"over\"" };
    let mut body = format!("<header>\n<h1>{}</h1>\n</header>\n", escape(&title));
    body += &format!("<p>{}</p>\n<p{class}>{}</p>\n", escape(&subject(report)), escape(&headline(report)));
    body += &table("verdicts", "verdicts", &VERDICT_HEADS, &rows(verdict_rows(report)));
    body += &list("Wrong values", &mismatch_lines(findings));
    body += &table("workloads", "workloads", &WORKLOAD_HEADS, &rows(workload_rows(findings)));
    body += &list("Reported by the GPU", &reading_lines(findings));
    page(&title, "", &body)
}

fn rows<const N: usize>(rows: Vec<[String; N]>) -> Vec<Vec<String>> {
    rows.into_iter().map(Vec::from).collect()
}

fn list(heading: &str, lines: &[String]) -> String {
    if lines.is_empty() {
        return String::new();
    }
    let items = lines.iter().map(|line| format!("<li>{}</li>\n", escape(line))).collect::<String>();
    format!("<h2>{heading}</h2>\n<ul>\n{items}</ul>\n")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::page::check_page;
    use plimsoll_stress::{
        Criteria, Ending, Findings, MatrixUnits, MemoryFilled, Mismatch, Readings, Series, Unit, WrongResults, judge,
    };
    use plimsoll_units::Seconds;

    #[test]
    fn names_and_messages_can_not_break_the_page() {
        let hostile = "<b>\u{1b}[31m & \"".to_owned();
        let mismatch = Mismatch { workload: hostile.clone(), offset: 64, on_host: false, bits: Some([3, 1]) };
        let unlocated = Mismatch { bits: None, ..mismatch.clone() };
        let wrong = WrongResults { values: 9, bits: 9, checks: 20, first: vec![mismatch, unlocated] };
        let series = Series { workload: hostile.clone(), unit: Unit::Flops, speeds: vec![2e12], busy: Seconds(1.0) };
        let findings = Findings {
            phases: vec![],
            sizes: vec![(hostile.clone(), hostile.clone())],
            series: vec![series],
            memory: MemoryFilled::default(),
            wrong,
            readings: Some(Readings { hottest_c: Some(70.0), xids: vec![48], ..Readings::default() }),
            ending: Ending::Failed(hostile.clone()),
            planned: Seconds(3600.0),
            ran: Seconds(9.0),
        };
        let verdicts = judge(&findings, &Criteria { matrix_units: MatrixUnits::None });
        let page = stress_html(&StressReport { device: hostile, is_stand_in: true, findings, verdicts });
        check_page(&page);
        for words in ["differing bits 0x00000002", "and 7 more wrong values", "2.0 TFLOP/s", "Xid): 48", "9.0 s of 1 h"]
        {
            assert!(page.contains(words), "{words}: {page}");
        }
    }
}
