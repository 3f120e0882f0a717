//! Grammars of answers, compiled beside the engine.

use std::sync::{Arc, OnceLock};

use fercuda_grammar::{GrammarCompiler, GrammarError, GrammarSource, TokenGrammar};
use fercuda_tokenizer::Tokenizer;
use tokio::sync::Semaphore;

use crate::api_error::{ApiError, ErrorKind};

/// Most grammars that are compiled at once, so that threads are left for prompts.
const COMPILATIONS: usize = 2;

/// What compiles the grammars of requests: made by the first one that has one.
#[derive(Debug)]
pub(crate) struct GrammarDesk {
    compiler: Arc<OnceLock<Result<GrammarCompiler, GrammarError>>>,
    places: Semaphore,
}

impl GrammarDesk {
    pub(crate) fn new() -> GrammarDesk {
        GrammarDesk {
            compiler: Arc::default(),
            places: Semaphore::new(COMPILATIONS),
        }
    }

    /// Compiles the grammar that a member of a request has, in a thread for such work. `held` goes
    /// along, and comes back.
    ///
    /// # Errors
    /// What is wrong with it.
    pub(crate) async fn compile<H: Send + 'static>(
        &self,
        model: Arc<impl AsRef<Tokenizer> + Send + Sync + 'static>,
        (member, source): (&'static str, GrammarSource),
        held: H,
    ) -> Result<(TokenGrammar, H), ApiError> {
        let internal = || ApiError::new(ErrorKind::Internal, "the grammar could not be compiled");
        let _place = self.places.acquire().await.map_err(|_| internal())?;
        let compiler = Arc::clone(&self.compiler);
        let compile = move || {
            let compiler = compiler.get_or_init(|| GrammarCompiler::new((*model).as_ref()));
            let compiled = match compiler {
                Ok(compiler) => compiler.compile(&source),
                Err(error) => Err(error.clone()),
            };
            (compiled, held)
        };
        let (compiled, held) = tokio::task::spawn_blocking(compile)
            .await
            .map_err(|_| internal())?;
        match compiled {
            Ok(grammar) => Ok((grammar, held)),
            Err(error) => Err(ApiError::of(member, error.to_string())),
        }
    }
}
