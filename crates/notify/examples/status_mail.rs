//! Sends a status mail as a run does: `status_mail HOST:PORT tls|starttls CERTIFICATE`, for `scripts/check_mail.py`.

use plimsoll_notify::{
    Card, Encryption, Kind, LossPoint, MailSettings, Message, Notifier, NotifySettings, Service, Timing,
};
use plimsoll_secrets::Secrets;
use plimsoll_units::{Bytes, Seconds};
use std::error::Error;
use std::time::Duration;

fn main() -> Result<(), Box<dyn Error>> {
    let arguments = std::env::args().skip(1).collect::<Vec<_>>();
    let [server, encryption, authority] = arguments.as_slice() else { return Err("three arguments".into()) };
    let encryption = if encryption == "tls" { Encryption::Tls } else { Encryption::StartTls };
    let to = ["me@example.com".to_owned(), "you@example.com".to_owned()];
    let mail = MailSettings::new(&to, None, server, Some(encryption), Seconds(0.0), Some(authority.into()))?;
    let settings =
        NotifySettings { services: vec![Service::Mail], every_steps: 0, mail: Some(mail), timing: Timing::default() };
    let notifier = Notifier::start(&settings, &Secrets::load(|name| std::env::var_os(name), None, None)?)?;
    let mut message = Message::new(Kind::Progress, "nano-1", "", plimsoll_telemetry::now_s());
    (message.step, message.last_step, message.loss) = (Some(120), Some(500), Some(2.345_67));
    (message.tokens_per_s, message.time_left) = (Some(12_345.0), Some(Seconds(754.0)));
    message.memory = Some(Bytes::mib(900));
    message.cards = vec![Card {
        name: "RTX 3090".to_owned(),
        temperature_c: Some(71.0),
        memory_temperature_c: Some(84.0),
        power_w: Some(310.0),
        busy_percent: Some(98),
        used: Some(Bytes::mib(9_000)),
        total: Some(Bytes::mib(24_576)),
        ..Card::default()
    }];
    message.curve = (1..=120).map(|step| LossPoint { step, loss: 2.0 + 5.0 / (step as f64).sqrt() }).collect();
    notifier.send(&message);
    let report = notifier.finish(Duration::from_secs(10));
    if report.senders[0].sent == 1 { Ok(()) } else { Err(format!("{report:?}").into()) }
}
