//! Prompts and completions, as in TRL and OpenAI's older format: texts without a template. The completion is trained
//! on. If both are lists of messages, they form a chat (`format.rs`).

use super::TrainOn;
use super::format::{ChatError, Fields, field_text};
use super::spans::Rendered;

/// The text of a row, whose completion is trained on. Errors: the row lacks such texts.
pub(super) fn rendered(fields: &Fields, train_on: TrainOn) -> Result<Rendered, ChatError> {
    let text_of = |field, name: &str| field_text(field, name).map_err(ChatError::NotAChat);
    let prompt = text_of(&fields.prompt, "`prompt`")?;
    let completion = text_of(&fields.completion, "`completion`")?;
    let begin = if train_on == TrainOn::All { 0 } else { prompt.len() };
    let text = prompt + &completion;
    let span = begin..text.len();
    Ok(Rendered { trained: Some(span).filter(|span| !span.is_empty()).into_iter().collect(), text })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(row: &str, train_on: TrainOn) -> Result<(String, Vec<String>), ChatError> {
        let Rendered { text, trained } = rendered(&Fields::of_row(row)?.expect("a row"), train_on)?;
        let trained = trained.iter().map(|span| text[span.clone()].to_owned()).collect();
        Ok((text, trained))
    }

    #[test]
    fn the_completion_is_trained_on() {
        let row = r#"{"prompt":"2+2=","completion":" 4","id":7}"#;
        assert_eq!(of(row, TrainOn::Answers).unwrap(), ("2+2= 4".to_owned(), vec![" 4".to_owned()]));
        assert_eq!(of(row, TrainOn::All).unwrap().1, ["2+2= 4"]);
        assert!(of(r#"{"prompt":"a","completion":""}"#, TrainOn::Answers).unwrap().1.is_empty());
        for row in [r#"{"prompt":"a"}"#, r#"{"prompt":"a","completion":7}"#] {
            assert!(matches!(of(row, TrainOn::All), Err(ChatError::NotAChat(_))), "{row}");
        }
    }
}
