# bert-tf serve for amd64 and arm64: no root, no file written.
#   docker build -t bert-tf .
#   docker run --read-only -p 8500:8500 -p 8501:8501 -v "$PWD/saved_models:/models:ro" bert-tf
FROM python:3.12-slim AS build
COPY requirements-serve.lock pyproject.toml README.md LICENSE /source/
COPY bert_tf /source/bert_tf
COPY pipelines /source/pipelines
RUN python -m venv /opt/bert-tf
RUN /opt/bert-tf/bin/pip install --no-cache-dir --require-hashes -r /source/requirements-serve.lock
RUN /opt/bert-tf/bin/pip wheel --no-deps --no-build-isolation --wheel-dir /wheels /source
RUN /opt/bert-tf/bin/pip install --no-cache-dir --no-deps /wheels/*.whl

FROM python:3.12-slim
COPY --from=build /opt/bert-tf /opt/bert-tf
# Nothing is written: neither byte code nor what Keras and Matplotlib would keep in a home folder.
ENV PATH=/opt/bert-tf/bin:$PATH PYTHONDONTWRITEBYTECODE=1 PYTHONUNBUFFERED=1 HOME=/nonexistent
USER 10001:10001
EXPOSE 8500 8501
# With --tls_certificate the server speaks https alone.
HEALTHCHECK --start-period=5m CMD for scheme in http https; do python -c "import ssl, sys, urllib.request as r; r.urlopen(sys.argv[1], context=ssl._create_unverified_context())" $scheme://127.0.0.1:8501/readyz && exit 0; done; exit 1
ENTRYPOINT ["bert-tf", "serve", "--host=0.0.0.0"]
CMD ["/models"]
