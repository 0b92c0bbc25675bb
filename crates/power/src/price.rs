//! The price of a kilowatt-hour.

use std::str::FromStr;

/// Upper limit on a price.
const MAX_PRICE: f64 = 100_000.0;

/// Length limit on a currency's name or sign, in characters.
const MAX_CURRENCY: usize = 8;

/// A price per kilowatt-hour.
#[derive(Debug, Clone, PartialEq)]
pub struct Price {
    /// The price, in units of the currency.
    pub per_kwh: f64,
    /// The currency as written, if any.
    pub currency: Option<String>,
}

/// A text is not a price.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{text}` is not a price such as 0.31, 0.31EUR or $0.12")]
pub struct BadPrice {
    /// The text.
    pub text: String,
}

impl FromStr for Price {
    type Err = BadPrice;

    /// Parses a number with an optional currency before or after it.
    fn from_str(text: &str) -> Result<Self, BadPrice> {
        let bad = || BadPrice { text: text.chars().filter(|c| !c.is_control()).take(40).collect() };
        let of_number = |c: char| c.is_ascii_digit() || c == '.';
        let trimmed = text.trim();
        let begins = trimmed.find(of_number).ok_or_else(bad)?;
        let ends = trimmed.rfind(of_number).map_or(begins, |last| last + 1);
        let (before, number, after) = (&trimmed[..begins], &trimmed[begins..ends], &trimmed[ends..]);
        let per_kwh = number.parse::<f64>().ok().filter(|price| (0.0..=MAX_PRICE).contains(price)).ok_or_else(bad)?;
        let currency = match (before.trim(), after.trim()) {
            ("", "") => None,
            (currency, "") | ("", currency) => Some(currency),
            _ => return Err(bad()),
        };
        // Only letters and currency signs, so that the text is safe to print.
        let is_sign = |c: char| matches!(c, '$' | '£' | '¥' | '¢') || ('\u{20a0}'..='\u{20cf}').contains(&c);
        let is_currency =
            |name: &str| name.chars().count() <= MAX_CURRENCY && name.chars().all(|c| c.is_alphabetic() || is_sign(c));
        match currency {
            Some(name) if !is_currency(name) => Err(bad()),
            currency => Ok(Self { per_kwh, currency: currency.map(str::to_owned) }),
        }
    }
}

impl Price {
    /// The cost of this much energy.
    pub fn of_joules(&self, joules: f64) -> f64 {
        self.per_kwh * joules / 3.6e6
    }
}

impl std::fmt::Display for Price {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}{}", self.per_kwh, self.currency.as_deref().unwrap_or_default())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn prices_have_an_optional_currency() {
        let price = |text: &str| text.parse::<Price>().map(|price| (price.per_kwh, price.currency)).ok();
        assert_eq!(price("0.31"), Some((0.31, None)));
        for (text, currency) in [("0.31EUR", "EUR"), ("0.31 €", "€"), ("$0.31", "$"), (" CHF 0.31 ", "CHF")] {
            assert_eq!(price(text), Some((0.31, Some(currency.to_owned()))), "{text}");
        }
        for text in ["", "EUR", "-1", "1e9", "NaN", "inf", "1.2.3", "a0.3b", "0.3\u{1b}[31m", "0.3<b>", "0.3 ABCDEFGHI"]
        {
            assert_eq!(price(text), None, "{text:?}");
        }
        let price = "0.30EUR".parse::<Price>().unwrap();
        assert_eq!((price.of_joules(3.6e6), price.to_string().as_str()), (0.3, "0.3EUR"));
    }
}
