"""Logistic regression with a parameter server, trained by the replicas of a TFJob.

The operator sets TF_CONFIG. The variables are on the parameter server; the chief
schedules epochs on the workers, which read the variables and update them there.
The chief prints the loss and the accuracy on held-out examples: the trial's
metrics. A worker prints the loss on the shard that it was given.
"""

from __future__ import annotations

import argparse
import sys

import numpy as np
import tensorflow as tf

FEATURES, TRAINING, HELD_OUT, BATCH = 16, 1024, 256, 32
SHARDS = 2


def examples() -> tuple[tf.Tensor, tf.Tensor]:
    """(examples, features) and their labels, 0 or 1:
    on which side of a hidden plane an example is.
    """
    generator = np.random.default_rng(7)
    inputs = generator.normal(size=(TRAINING + HELD_OUT, FEATURES)).astype(np.float32)
    plane = generator.normal(size=(FEATURES, 1)).astype(np.float32)
    return tf.constant(inputs), tf.constant((inputs @ plane > 0).astype(np.float32))


def serve(resolver: tf.distribute.cluster_resolver.TFConfigClusterResolver) -> None:
    """Work for the chief, as a worker or a parameter server.

    Does not return: the operator ends it with the chief.
    """
    server = tf.distribute.Server(
        resolver.cluster_spec(),
        job_name=resolver.task_type,
        task_index=resolver.task_id,
        protocol="grpc",
    )
    print(f"{resolver.task_type} {resolver.task_id} serves", flush=True)
    server.join()


def train(
    resolver: tf.distribute.cluster_resolver.TFConfigClusterResolver, lr: float, epochs: int
) -> None:
    strategy = tf.distribute.ParameterServerStrategy(resolver)
    coordinator = tf.distribute.coordinator.ClusterCoordinator(strategy)
    with strategy.scope():
        weights, bias = tf.Variable(tf.zeros([FEATURES, 1])), tf.Variable(tf.zeros([1]))
    print(f"the variables are on {weights.device}", flush=True)

    def loss_of(inputs: tf.Tensor, labels: tf.Tensor) -> tf.Tensor:
        logits = inputs @ weights + bias
        return tf.reduce_mean(tf.nn.sigmoid_cross_entropy_with_logits(labels=labels, logits=logits))

    @tf.function
    def train_shard(epoch: tf.Tensor, shard: tf.Tensor) -> None:
        inputs, labels = examples()
        inputs, labels = inputs[shard:TRAINING:SHARDS], labels[shard:TRAINING:SHARDS]
        for start in tf.range(0, TRAINING // SHARDS, BATCH):
            with tf.GradientTape() as tape:
                loss = loss_of(inputs[start : start + BATCH], labels[start : start + BATCH])
            for variable, gradient in zip(
                (weights, bias), tape.gradient(loss, (weights, bias)), strict=True
            ):
                variable.assign_sub(lr * gradient)
        tf.print(
            "epoch=", epoch, " loss=", loss_of(inputs, labels), sep="", output_stream=sys.stdout
        )

    inputs, labels = examples()
    inputs, labels = inputs[TRAINING:], labels[TRAINING:]
    for epoch in range(1, epochs + 1):
        for shard in range(SHARDS):
            coordinator.schedule(train_shard, args=(tf.constant(epoch), tf.constant(shard)))
        coordinator.join()
        right = tf.equal(inputs @ weights + bias > 0, labels > 0.5)
        accuracy = tf.reduce_mean(tf.cast(right, tf.float32))
        print(
            f"epoch={epoch} loss={loss_of(inputs, labels):.6f} accuracy={accuracy:.4f}", flush=True
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--lr", type=float, required=True)
    parser.add_argument("--epochs", type=int, default=8)
    options = parser.parse_args()
    resolver = tf.distribute.cluster_resolver.TFConfigClusterResolver()
    if resolver.task_type in ("worker", "ps"):
        serve(resolver)
    else:
        train(resolver, options.lr, options.epochs)


if __name__ == "__main__":
    main()
