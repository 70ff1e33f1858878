"""Train with `fit` of Keras 3 on torch: its optimizers are none of torch's."""

import os

os.environ["KERAS_BACKEND"] = "torch"
import keras
import numpy as np

keras.utils.set_random_seed(0)
points = np.random.randn(256, 8).astype("float32")
classes = (points @ np.random.randn(8, 3).astype("float32")).argmax(1)
layers = keras.layers
hidden = [layers.Dense(32, "relu"), layers.BatchNormalization(), layers.Dropout(0.1)]
model = keras.Sequential([*hidden, layers.Dense(3)])
loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
model.compile(optimizer=keras.optimizers.Adam(1e-2), loss=loss, metrics=["accuracy"])
done = model.fit(points, classes, epochs=4, batch_size=32, validation_split=0.25, verbose=0)
for name, values in done.history.items():
    print(name, [float(value) for value in values])
print("weights", sum(float(np.abs(each).astype("float64").sum()) for each in model.get_weights()))
