from tests.support.authors_calls import record


def load_ae(local_path):
    record("load_ae", locals())
    return "the autoencoder", "its configuration"
