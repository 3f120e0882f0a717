//! Values of messages, with members in the order in which they were written.

use minijinja::Value;
use serde::de::{Deserialize, Deserializer, MapAccess, SeqAccess, Visitor};

/// A JSON value whose members keep their order, as templates show it.
#[derive(Clone, Debug, PartialEq)]
pub enum ChatValue {
    /// `null`; as a member of a message it is as good as absent.
    Null,
    /// A truth value.
    Bool(bool),
    /// An integer.
    Int(i128),
    /// Any other number.
    Float(f64),
    /// A text.
    Text(String),
    /// Values in order.
    List(Vec<ChatValue>),
    /// Members in order.
    Object(Vec<(String, ChatValue)>),
}

impl ChatValue {
    /// An object of these members.
    pub fn object<K: Into<String>>(members: impl IntoIterator<Item = (K, ChatValue)>) -> ChatValue {
        let members = members.into_iter().map(|(key, value)| (key.into(), value));
        ChatValue::Object(members.collect())
    }

    /// A message: an object of its role and content.
    pub fn message(role: &str, content: &str) -> ChatValue {
        Self::object([("role", role.into()), ("content", content.into())])
    }

    /// Parses JSON.
    ///
    /// # Errors
    /// What is wrong with it, and where.
    pub fn from_json(text: &str) -> Result<ChatValue, serde_json::Error> {
        serde_json::from_str(text)
    }

    /// The member of this name.
    pub fn get(&self, name: &str) -> Option<&ChatValue> {
        match self {
            ChatValue::Object(members) => members.iter().find(|it| it.0 == name).map(|it| &it.1),
            _ => None,
        }
    }

    /// As JSON.
    pub fn to_json(&self) -> serde_json::Value {
        match self {
            ChatValue::Null => serde_json::Value::Null,
            ChatValue::Bool(it) => (*it).into(),
            ChatValue::Int(it) => match (i64::try_from(*it), u64::try_from(*it)) {
                (Ok(it), _) => it.into(),
                (_, Ok(it)) => it.into(),
                _ => (*it as f64).into(),
            },
            ChatValue::Float(it) => (*it).into(),
            ChatValue::Text(it) => it.as_str().into(),
            ChatValue::List(items) => items.iter().map(ChatValue::to_json).collect(),
            ChatValue::Object(members) => {
                let members = members.iter();
                let members = members.map(|(name, it)| (name.clone(), it.to_json()));
                serde_json::Value::Object(members.collect())
            }
        }
    }

    /// As templates see it.
    pub(crate) fn to_template(&self) -> Value {
        match self {
            ChatValue::Null => Value::from(()),
            ChatValue::Bool(it) => Value::from(*it),
            ChatValue::Int(it) => match i64::try_from(*it) {
                Ok(it) => Value::from(it),
                Err(_) => Value::from(*it),
            },
            ChatValue::Float(it) => Value::from(*it),
            ChatValue::Text(it) => Value::from(it.as_str()),
            ChatValue::List(items) => items.iter().map(ChatValue::to_template).collect(),
            ChatValue::Object(members) => {
                let members = members.iter();
                Value::from_pairs(members.map(|(key, it)| (key.as_str(), it.to_template())))
            }
        }
    }
}

impl From<&str> for ChatValue {
    fn from(text: &str) -> ChatValue {
        ChatValue::Text(text.to_owned())
    }
}

impl From<String> for ChatValue {
    fn from(text: String) -> ChatValue {
        ChatValue::Text(text)
    }
}

impl From<bool> for ChatValue {
    fn from(it: bool) -> ChatValue {
        ChatValue::Bool(it)
    }
}

impl From<i64> for ChatValue {
    fn from(it: i64) -> ChatValue {
        ChatValue::Int(it.into())
    }
}

impl From<Vec<ChatValue>> for ChatValue {
    fn from(items: Vec<ChatValue>) -> ChatValue {
        ChatValue::List(items)
    }
}

impl<'de> Deserialize<'de> for ChatValue {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<ChatValue, D::Error> {
        deserializer.deserialize_any(ChatValueVisitor)
    }
}

struct ChatValueVisitor;

impl<'de> Visitor<'de> for ChatValueVisitor {
    type Value = ChatValue;

    fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("a JSON value")
    }

    fn visit_unit<E>(self) -> Result<ChatValue, E> {
        Ok(ChatValue::Null)
    }

    fn visit_bool<E>(self, it: bool) -> Result<ChatValue, E> {
        Ok(ChatValue::Bool(it))
    }

    fn visit_i64<E>(self, it: i64) -> Result<ChatValue, E> {
        Ok(ChatValue::Int(it.into()))
    }

    fn visit_u64<E>(self, it: u64) -> Result<ChatValue, E> {
        Ok(ChatValue::Int(it.into()))
    }

    fn visit_f64<E>(self, it: f64) -> Result<ChatValue, E> {
        Ok(ChatValue::Float(it))
    }

    fn visit_str<E>(self, it: &str) -> Result<ChatValue, E> {
        Ok(ChatValue::Text(it.to_owned()))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut from: A) -> Result<ChatValue, A::Error> {
        let mut items = Vec::new();
        while let Some(item) = from.next_element()? {
            items.push(item);
        }
        Ok(ChatValue::List(items))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut from: A) -> Result<ChatValue, A::Error> {
        let mut members: Vec<(String, ChatValue)> = Vec::new();
        let mut places = std::collections::HashMap::new();
        while let Some((key, value)) = from.next_entry::<String, ChatValue>()? {
            // Of two members of one name the last one's value counts, at the first one's place.
            let place = *places.entry(key.clone()).or_insert(members.len());
            match members.get_mut(place) {
                Some(member) => member.1 = value,
                None => members.push((key, value)),
            }
        }
        Ok(ChatValue::Object(members))
    }
}
