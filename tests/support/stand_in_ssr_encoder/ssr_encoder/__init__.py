from .ssr_encoder import SSR_encoder
