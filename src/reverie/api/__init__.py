"""The HTTP API. Under `/product` every answer, errors too, is `{code, message, data}`."""
